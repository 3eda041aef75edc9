"""The operators of namespace `milkweed`: schemas, fake and CPU implementations, and a typed function for each.

The CUDA implementations come with the compiled library (`native`). The CPU ones compute the same function from the
same packed tensors in plain PyTorch, so that models that use these operators run, compile and export without a GPU.
They are for inference: none has a derivative. `tile` is the variant of the kernel, which a CPU ignores. On CUDA, a
RuntimeError says which tensor a kernel does not take, before anything is launched.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..add_layernorm import add_layernorm_reference
from ..attention import attention_reference
from ..blocked_mlp import BlockedMlp, mlp_reference
from ..conv_branch import ConvBranch, conv_branch_reference
from ..performer import performer_reference

_library = torch.library.Library("milkweed", "DEF")


def monarch_mlp(
    x: Tensor,
    factor1: Tensor,
    stream: Tensor,
    factor2: Tensor,
    bias1: Tensor,
    bias2: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    eps: float = 1e-5,
    tile: int = 0,
) -> Tensor:
    """Compute fc2(gelu(fc1(norm(x)))) + residual for layers that `blocked_mlp` has packed.

    Args:
        x, residual: (M, width), bfloat16 or float16, contiguous; residual may be None.
        factor1, stream, factor2, bias1, bias2: tensors of a `BlockedMlp`.
        norm_weight, norm_bias, eps: a LayerNorm over x, (width,) float32; or both None.

    Returns:
        (M, width).
    """
    weights = (factor1, stream, factor2, bias1, bias2)
    return torch.ops.milkweed.monarch_mlp(x, *weights, residual, norm_weight, norm_bias, eps, tile)


def _monarch_mlp_cpu(x: Tensor, *arguments: Any) -> Tensor:
    *packed, residual, norm_weight, norm_bias, eps, _ = arguments
    if (norm_weight is None) != (norm_bias is None):
        raise ValueError("monarch_mlp: norm_weight and norm_bias come together")
    norm = None if norm_weight is None else (norm_weight, norm_bias, eps)
    return mlp_reference(x, BlockedMlp(*packed), residual, norm)


def short_attention(
    qkv: Tensor, num_heads: int, scale: float, log_sizes: Tensor | None = None, tile: int = 0
) -> Tensor:
    """Compute softmax(scale q k^T + log_sizes) v of at most 256 tokens.

    Args:
        qkv: (B, N, 3 * num_heads * head_dim), bfloat16 or float16, contiguous: q, k, v, then heads.
        num_heads: heads; head_dim is 32 or 64.
        scale: factor of the scores, positive.
        log_sizes: (B, N) float32, logarithms of what each key counts for; None where all count for 1. A GPU does not
            look at them before the launch: a size of infinity makes its image NaN, one of zero drops its key.

    Returns:
        (B, N, num_heads * head_dim).
    """
    return torch.ops.milkweed.short_attention(qkv, num_heads, scale, log_sizes, tile)


def performer_attention(
    kqv: Tensor,
    weights: Tensor,
    biases: Tensor,
    parallel: Tensor | None,
    eps: float,
    norm_eps: float = 0.0,
    tile: int = 0,
) -> Tensor:
    """Compute the performer attention of a reduction cell, its projection, and its MLP if `biases` has three rows.

    Args:
        kqv: (B, N, 3 * dim), bfloat16 or float16, contiguous: keys, queries, values.
        weights, biases, eps, norm_eps: those of a `PackedPerformer`.
        parallel: (B, N, dim), added after the projection, or None.
        tile: see `performer_tile`.

    Returns:
        (B, N, dim).
    """
    return torch.ops.milkweed.performer_attention(kqv, weights, biases, parallel, eps, norm_eps, tile)


def conv_branch(
    tokens: Tensor, packed: ConvBranch, residual: Tensor | None, class_token: bool, tile: int = 0
) -> Tensor:
    """Compute ViTAE's convolution branch over tokens, with layers that `pack_conv_branch` has packed.

    Args:
        tokens, residual: (B, class_token + side * side, C), bfloat16 or float16, contiguous; residual may be None.
        class_token: whether the first token is a class token, which only gets the residual, or zeros.

    Returns:
        The shape of tokens.
    """
    return torch.ops.milkweed.conv_branch(tokens, *packed.operands, residual, packed.groups, class_token, tile)


def _conv_branch_cpu(tokens: Tensor, *arguments: Any) -> Tensor:
    *operands, residual, groups, class_token, _ = arguments
    tensors = tuple(tensor for tensor in operands if tensor is not None)
    return conv_branch_reference(tokens, ConvBranch(tensors, groups), residual, class_token)


def add_layernorm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Compute x + residual, and the LayerNorm of that.

    Args:
        x, residual: (M, width), bfloat16 or float16, contiguous.
        weight, bias, eps: those of the LayerNorm, (width,) float32.

    Returns:
        (2, M, width): the sums, then their norms.
    """
    return torch.ops.milkweed.add_layernorm(x, residual, weight, bias, eps)


def _without_tile(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make a CPU implementation of the same function without the last argument: a CPU has no tiles."""
    return lambda *arguments: reference(*arguments[:-1])


def _third_of_first(first: Tensor, *_: object) -> Tensor:
    """Fake implementation of operators on three packed tensors (B, N, 3 * width) that return one."""
    return first.new_empty(*first.shape[:-1], first.shape[-1] // 3)


def _define(schema: str, cpu: Callable[..., Tensor], fake: Callable[..., Tensor]) -> None:
    """Register an operator with PyTorch, all but its CUDA implementation."""
    # The kernels take contiguous tensors: a compiler must pass tensors with the strides of the traced program.
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))
    name = schema.partition("(")[0]
    _library.impl(name, cpu, "CPU")
    torch.library.register_fake(f"milkweed::{name}", fake, lib=_library)


_define(
    "monarch_mlp(Tensor x, Tensor factor1, Tensor stream, Tensor factor2, Tensor bias1, Tensor bias2, "
    "Tensor? residual, Tensor? norm_weight, Tensor? norm_bias, float eps, int tile) -> Tensor",
    _monarch_mlp_cpu,
    lambda x, *_: x.new_empty(x.shape),
)
_define(
    "short_attention(Tensor qkv, int num_heads, float scale, Tensor? log_sizes, int tile) -> Tensor",
    _without_tile(attention_reference),
    _third_of_first,
)
_define(
    "performer_attention(Tensor kqv, Tensor weights, Tensor biases, Tensor? parallel, float eps, float norm_eps, "
    "int tile) -> Tensor",
    _without_tile(performer_reference),
    _third_of_first,
)
_define(
    "conv_branch(Tensor tokens, Tensor weight1, Tensor bias1, Tensor weight2, Tensor bias2, Tensor? weight3, "
    "Tensor? bias3, Tensor? residual, int groups, bool class_token, int tile) -> Tensor",
    _conv_branch_cpu,
    lambda tokens, *_: tokens.new_empty(tokens.shape),
)
_define(
    "add_layernorm(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps) -> Tensor",
    add_layernorm_reference,
    lambda x, *_: x.new_empty(2, *x.shape),
)
