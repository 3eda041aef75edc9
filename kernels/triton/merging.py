"""Merging tokens on Triton: one launch decides which tokens merge and writes what is left of them."""

from typing import Any

import torch
from torch import Tensor

from ..attention import split_heads
from ..blocked import DTYPES
from .linear import unusable
from .tiles import device_properties
from .token_merging import merge_by_keys

MAX_TOKENS = 256
"""A program holds the similarities of one image's two sets of tokens."""

SPLITS = (1, 2, 4)
"""Tile variants: programs for one image, each of which decides again and writes a part of the columns."""

MergeInputs = tuple[Tensor, Tensor, Tensor | None]
"""Tokens, qkv and sizes, as `merge_tokens` takes them."""


def merge_refusal(
    tokens: int, prefix: int, count: int, dtype: torch.dtype, device: torch.device, *, on_cpu: bool = False
) -> str | None:
    """Return why the kernel does not merge `count` of so many tokens there; None if it does. Launches nothing.

    Args:
        on_cpu: take a CPU too, whose implementation of the operator is plain PyTorch, for tests.
    """
    stands_in = on_cpu and device.type == "cpu" and dtype in DTYPES
    return _refused_shape(tokens, prefix, count) or (None if stands_in else unusable(dtype, device))


def _refused_shape(tokens: int, prefix: int, count: int) -> str | None:
    patches = tokens - prefix
    if not 0 <= prefix <= tokens <= MAX_TOKENS:
        return f"{tokens} tokens, {prefix} of them in front: the merging kernel takes at most {MAX_TOKENS}"
    if not 1 <= count <= (patches - 1) // 2:
        return f"{count} of {patches} tokens cannot merge: 1 to {max(0, (patches - 1) // 2)} can"
    return None


@torch.library.custom_op("milkweed::triton_merge_tokens", mutates_args=())
def merge_tokens(
    x: Tensor,
    qkv: Tensor,
    size: Tensor | None,
    num_heads: int,
    count: int,
    prefix: int,
    protect: float = 0.0,
    scale: float = 1.0,
    tile: int = 0,
) -> tuple[Tensor, Tensor]:
    """Merge the `count` most similar tokens of the first set, as `matched` and `merged` do, but for rounding.

    Cosines are float32, but summed in another order than PyTorch's: nearly equal ones may be ranked otherwise, those of
    equal keys are not.

    Args:
        x: (B, N, C), bfloat16 or float16, contiguous; N at most 256.
        qkv: (B, N, 3 * num_heads * head_dim) of that dtype, contiguous: tokens are compared by their keys' mean over
            the heads.
        size: (B, N, 1) float32, contiguous, or None: all 1. A GPU does not look at them before the launch: one of zero
            or infinity spoils its own image alone.
        count: 1 to (N - prefix - 1) // 2.
        prefix: tokens in front that stay.
        protect: 0, or how much the first token's attention, with queries scaled by `scale`, is taken off the similarity
            (`class_importance`).
        tile: index of `SPLITS`; a CPU, which runs plain PyTorch, ignores it.

    Returns:
        Tokens (B, N - count, C) and their sizes (B, N - count, 1).

    Raises:
        ValueError: the tensors do not fit, or (CPU) a size is not above 0 and finite; nothing was launched.
        ModuleNotFoundError: (CUDA) triton is not installed.
    """
    inputs = (x, qkv, size)
    _check(inputs, num_heads, count, prefix, tile)
    if x.device.type == "cpu":
        if size is not None and not bool((size.isfinite() & (size > 0)).all()):
            raise ValueError("size: numbers above 0 and finite are needed")
        q, k, _ = split_heads(qkv, num_heads)
        return merge_by_keys(x, q[:, :, :1] * scale, k, size, count, prefix, protect)
    results = _empty(x, count)
    with torch.cuda.device(x.device):
        constants = merge_constants(x, qkv, num_heads, count, prefix, protect, scale, SPLITS[tile])
        launch_merge(inputs, results, constants | {"PDL": device_properties(x.device).pdl})
    return results


def _empty(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    batch, tokens, width = x.shape
    return x.new_empty(batch, tokens - count, width), x.new_empty(batch, tokens - count, 1, dtype=torch.float32)


merge_tokens.register_fake(lambda x, *arguments: _empty(x, arguments[3]))


def launch_merge(inputs: MergeInputs, results: tuple[Tensor, Tensor], constants: dict[str, Any]) -> None:
    """Launch the kernel on the current CUDA device, or interpret it (TRITON_INTERPRET=1) on a CPU; no image, no launch.

    Raises:
        ModuleNotFoundError: triton is not installed.
    """
    from . import merge_kernel  # here, because only this needs triton

    (x, qkv, size), (y, new_size) = inputs, results
    constants = constants | {"HAS_SIZES": size is not None}
    if len(x):
        kernel = merge_kernel.merge_tokens[len(x), constants["SPLITS"]]
        tensors = x, qkv, new_size if size is None else size, y, new_size
        kernel(*tensors, **constants, **merge_options(constants))


def merge_constants(
    x: Tensor, qkv: Tensor, num_heads: int, count: int, prefix: int, protect: float, scale: float, splits: int
) -> dict[str, Any]:
    """Return the kernel's compile-time numbers, but for its flags."""
    (_, tokens, width), head_dim = x.shape, qkv.shape[2] // (3 * num_heads)
    shape = {"N": tokens, "C": width, "HEADS": num_heads, "D": head_dim, "PREFIX": prefix, "COUNT": count}
    first, front = _power_of_two((tokens - prefix + 1) // 2), _power_of_two(prefix)
    columns = 32 if first > 64 else 64  # a wider part of 256 tokens would spill
    tile = {"SET": max(16, first), "FRONT": front, "BD": 64, "HEAD": _power_of_two(head_dim), "BC": columns}
    return shape | tile | {"SPLITS": splits, "PROTECT": protect, "SCALE": scale}


def merge_options(constants: dict[str, int]) -> dict[str, Any]:
    """Return the compiler's options: a program of four warps would spill the similarities of 128 tokens a set."""
    warps = 8 if constants["SET"] > 64 else 4
    pdl = {"launch_pdl": True} if constants["PDL"] else {}
    return {"num_warps": warps, "num_stages": 2, "enable_fp_fusion": True} | pdl


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def _check(inputs: MergeInputs, num_heads: int, count: int, prefix: int, tile: int) -> None:
    """Check the tensors, since the kernel would read wrong ones without an error.

    Raises:
        ValueError: a tensor does not fit; the message names it.
    """
    x, qkv, size = inputs
    if x.dim() != 3 or qkv.dim() != 3 or qkv.shape[:2] != x.shape[:2]:
        raise ValueError(f"x {tuple(x.shape)}, qkv {tuple(qkv.shape)}: they do not fit")
    if x.dtype not in DTYPES or qkv.dtype != x.dtype:
        raise ValueError(f"x is {x.dtype}, qkv {qkv.dtype}: bfloat16 or float16 is needed, in both")
    if num_heads < 1 or qkv.shape[2] % (3 * num_heads):
        raise ValueError(f"qkv {tuple(qkv.shape)}: (B, N, 3 * {num_heads} heads * head dim) is needed")
    if refusal := _refused_shape(x.shape[1], prefix, count):
        raise ValueError(refusal)
    if not 0 <= tile < len(SPLITS):
        raise ValueError(f"tile {tile}: there are {len(SPLITS)}")
    shape = (*x.shape[:2], 1)
    if size is not None and (size.shape != shape or size.dtype != torch.float32):
        raise ValueError(f"size {tuple(size.shape)} of {size.dtype}: {shape} of float32 is needed")
    tensors = [tensor for tensor in inputs if tensor is not None]
    if any(tensor.device != x.device or not tensor.is_contiguous() for tensor in tensors):
        raise ValueError("tensors on one device and contiguous are needed")
