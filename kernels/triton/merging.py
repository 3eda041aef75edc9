"""Merging tokens on Triton: one launch decides which tokens merge and writes what is left of them."""

import torch
from torch import Tensor

from ..attention import split_heads
from ..blocked import DTYPES
from .launch import Launch
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
    most = min(MAX_TOKENS, MAX_TOKENS + 1 - prefix)  # the prefix is in the second set
    if not 0 <= prefix <= tokens <= most:
        return f"{tokens} tokens, {prefix} of them in front: the merging kernel takes at most {most}"
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
        x: (B, N, C), bfloat16 or float16, contiguous; N at most 256, and 257 - prefix.
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
    how, pdl = (num_heads, count, prefix, protect, scale, SPLITS[tile]), device_properties(x.device).pdl
    merge_launch(inputs, results, *how, pdl=pdl).run()
    return results


def _empty(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    batch, tokens, width = x.shape
    return x.new_empty(batch, tokens - count, width), x.new_empty(batch, tokens - count, 1, dtype=torch.float32)


merge_tokens.register_fake(lambda x, *arguments: _empty(x, arguments[3]))


def merge_launch(
    inputs: MergeInputs,
    results: tuple[Tensor, Tensor],
    num_heads: int,
    count: int,
    prefix: int,
    protect: float,
    scale: float,
    splits: int,
    *,
    pdl: bool,
) -> Launch:
    """Return the launch of `merge_tokens` into new tokens and sizes."""
    (batch, tokens, width), head_dim = inputs[0].shape, inputs[1].shape[2] // (3 * num_heads)
    shape = {"N": tokens, "C": width, "HEADS": num_heads, "D": head_dim, "PREFIX": prefix, "COUNT": count}
    patches = tokens - prefix
    most = max(16, _power_of_two(max((patches + 1) // 2, prefix + patches // 2)))
    # Wider parts of many tokens would spill, and so would their similarities in fewer warps.
    columns, warps = (64, 4) if most <= 64 else (32, 8)
    tile = {"SET": most, "BD": 64, "HEAD": _power_of_two(head_dim), "BC": columns, "SPLITS": splits}
    constants = shape | tile | {"PROTECT": protect, "SCALE": scale, "PDL": pdl}
    return Launch("merge_kernel.merge_tokens", (batch, splits), (*inputs, *results), constants, warps, stages=2)


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
