"""Plain PyTorch, one operator after the other: it runs every segment, so a chain can be cut in every way."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import sdpa_attention
from ..batched import monarch_batched
from ..chain_ir import Add, Attention, Dense, Gelu, LayerNorm, Monarch, Operator, Packed, Problem, needed
from .base import OTHER_KIND, Call, Runner, packed


class EagerImpl:
    """Runs every kind of operator; PyTorch picks the backend of attention."""

    name = "torch"

    def refuses(self, segment: Sequence[Operator], problem: Problem) -> str | None:
        if len(segment) == 1 and isinstance(segment[0], Dense | Monarch):
            return OTHER_KIND  # the dense and batched impls do just that
        return None

    def build(self, segment: Sequence[Operator], problem: Problem) -> Runner:
        steps, weights = zip(*(_step(operator, problem) for operator in segment), strict=True)

        def call(x: Tensor, residual: Tensor | None) -> Tensor:
            for step in steps:
                x = step(x, residual)
            return x

        return Runner(call, tuple(weight for weight in weights if weight is not None))


def _step(operator: Operator, problem: Problem) -> tuple[Call, Packed | None]:
    """Return one operator's call, and the tensors that it keeps."""
    match operator:
        case LayerNorm(_, _, eps):
            norm = norm_parameters(operator, problem)
            weight, bias = norm.tensors
            return lambda x, _: F.layer_norm(x, x.shape[-1:], weight, bias, eps), norm
        case Dense():
            dense = dense_parameters(operator, problem)
            return lambda x, _: F.linear(x, *dense.tensors), dense
        case Monarch():
            factors = factor_parameters(operator, problem)
            return lambda x, _: batched_linear(x, operator, factors.tensors), factors
        case Gelu():
            return lambda x, _: F.gelu(x), None
        case Attention(num_heads, _, scale):
            return lambda x, _: sdpa_attention(x, num_heads, scale), None
        case Add():
            return _add, None


def _add(x: Tensor, residual: Tensor | None) -> Tensor:
    return x + needed(residual)


def norm_parameters(norm: LayerNorm, problem: Problem) -> Packed:
    """Return weight and bias (C,)."""
    return packed(norm, "norm", problem, lambda: _ready(problem, norm.weight, norm.bias))


def dense_parameters(dense: Dense, problem: Problem) -> Packed:
    """Return weight (out, in), and bias (out,) if there is one."""
    return packed(dense, "dense", problem, lambda: _ready(problem, dense.weight, dense.bias))


def factor_parameters(monarch: Monarch, problem: Problem) -> Packed:
    """Return w1 (K, q, p), w2 (J, s, r), and bias (out,) if there is one."""
    return packed(monarch, "factors", problem, lambda: _ready(problem, monarch.w1, monarch.w2, monarch.bias))


def _ready(problem: Problem, *tensors: Tensor | None) -> list[Tensor]:
    return [tensor.to(problem.device, problem.dtype).contiguous() for tensor in tensors if tensor is not None]


def batched_linear(x: Tensor, monarch: Monarch, factors: Sequence[Tensor]) -> Tensor:
    """Compute the Monarch product as two batched products: (..., in_features) -> (..., out_features), a new tensor."""
    w1, w2, *bias = factors
    rows = F.pad(x.reshape(-1, x.shape[-1]), (0, monarch.shape.in_extended - x.shape[-1]))
    y = monarch_batched(rows, w1, w2)[:, : monarch.out_features]
    if bias:
        y += bias[0]
    return y.reshape(*x.shape[:-1], monarch.out_features)


def finish(y: Tensor, segment: Sequence[Operator], residual: Tensor | None) -> Tensor:
    """Apply the element-wise operators at a segment's end to `y` in place."""
    for operator in segment:
        if isinstance(operator, Gelu):
            torch.ops.aten.gelu_(y)
        else:
            y += needed(residual)
    return y
