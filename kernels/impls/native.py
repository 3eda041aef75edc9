"""The CUDA kernels of csrc as impls, one for each operator and tile variant."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention import attention_refusal
from ..blocked_mlp import block_mlp, block_width, mlp_refusal, tile_refusal
from ..chain_ir import ChainOp, LayerNorm, Monarch, Problem, SelfAttention, kinds
from ..native.library import library_path, native_status
from ..native.stamp import read_stamp
from ..native.torch_ops import monarch_mlp, short_attention
from .base import OTHER_KIND, Impl, Runner, Tiled, on_rows, packed
from .torch_ops import norm_tensors

MLP = {(*norm, "monarch", "gelu", "monarch", *add) for norm in ((), ("norm",)) for add in ((), ("add",))}

# The tile variants of each kernel; those that suit most problems come first.
MLP_TILES = (2, 3, 0, 1)
ATTENTION_TILES = (0, 1, 2, 3)


class Native(Tiled):
    """The common part of both impls."""

    def unusable(self, problem: Problem) -> str | None:
        """Return why the library cannot be used there; None if it can."""
        if self.stands_in(problem):
            return None
        status = native_status(problem.device)
        return None if status.loaded else status.reason


class NativeMlp(Native):
    """Runs an MLP of two Monarch layers in one launch, with the norm before and the residual's addition after it."""

    kernel = "native_mlp"

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        if kinds(segment) not in MLP:
            return OTHER_KIND
        fc1, fc2 = (operator for operator in segment if isinstance(operator, Monarch))
        if fc2.out_features != fc1.in_features:
            return f"{fc1.in_features} features go in and {fc2.out_features} come out: they must be as many"
        refusal = mlp_refusal(fc1.shape, fc2.shape, problem.dtype, (fc1.in_features, fc1.out_features))
        return refusal or self.unusable(problem) or self._tile_refusal(fc1, fc2, problem)

    def _tile_refusal(self, fc1: Monarch, fc2: Monarch, problem: Problem) -> str | None:
        """Return why the device does not run this variant; the operator's CPU implementation has no variants."""
        width = block_width(fc1.shape, fc2.shape)
        if problem.device.type != "cuda" or width is None:
            return None
        limit = torch.cuda.get_device_properties(problem.device).shared_memory_per_block_optin
        return tile_refusal(width, self.tile, limit)

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        fc1, fc2 = (operator for operator in segment if isinstance(operator, Monarch))
        weights = packed(fc1, "blocked_mlp", problem, lambda: _blocked_mlp(fc1, fc2, problem), fc2)
        factor1, stream, factor2, bias1, bias2 = weights.tensors
        norm = segment[0] if isinstance(segment[0], LayerNorm) else None
        norms = [] if norm is None else [norm_tensors(norm, problem)]
        norm_weight, norm_bias = norms[0].tensors if norms else (None, None)
        eps = norm.eps if norm else 0.0

        def kernel(x: Tensor, residual: Tensor | None) -> Tensor:
            operands = (x, factor1, stream, factor2, bias1, bias2, residual)
            return monarch_mlp(*operands, norm_weight, norm_bias, eps, self.tile)

        return on_rows(segment, fc2.out_features, kernel, weights, *norms)


class NativeAttention(Native):
    """Runs an attention over few tokens, with keys and values in shared memory."""

    kernel = "native_attention"

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        attention = segment[0]
        if len(segment) != 1 or not isinstance(attention, SelfAttention):
            return OTHER_KIND
        head_dim, scale = attention.head_dim, attention.scale
        refusal = attention_refusal(problem.batch, problem.tokens, head_dim, scale, problem.dtype)
        return refusal or self.unusable(problem)

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        (attention,) = segment
        assert isinstance(attention, SelfAttention)
        heads, scale = attention.num_heads, attention.scale

        def call(qkv: Tensor, log_sizes: Tensor | None) -> Tensor:
            return short_attention(qkv.contiguous(), heads, scale, attention.sizes(log_sizes), self.tile)

        return Runner(call)


def native_impls(*, on_cpu: bool = False) -> list[Impl]:
    """Return every kernel in every tile variant."""
    try:
        build_id = read_stamp(library_path()).source_hash
    except ValueError:
        build_id = "none"
    return [
        *(NativeMlp(tile, build_id, on_cpu) for tile in MLP_TILES),
        *(NativeAttention(tile, build_id, on_cpu) for tile in ATTENTION_TILES),
    ]


def _blocked_mlp(fc1: Monarch, fc2: Monarch, problem: Problem) -> tuple[Tensor, ...]:
    return block_mlp(fc1.on(problem.device), fc2.on(problem.device), problem.dtype).tensors
