"""Plain PyTorch: one operator after the other, which runs every segment."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import sdpa_attention
from ..chain_ir import (
    Add,
    BlockDiagonal,
    ChainOp,
    Dense,
    Gelu,
    LayerNorm,
    Monarch,
    Packed,
    Problem,
    SelfAttention,
    block_product,
    needed,
)
from ..quantized import QuantizedDense, quantize, sums_of
from ..reference import monarch_batched
from .base import OTHER_KIND, Call, Runner, packed


class EagerImpl:
    """Runs every kind of operator; PyTorch picks the backend of attention, and cuBLASLt multiplies 8 bits on CUDA."""

    name = "torch"

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        if len(segment) == 1 and isinstance(segment[0], Dense | Monarch):
            return OTHER_KIND  # the dense impl does just that
        return None

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        steps, weights = zip(*(_step(operator, problem) for operator in segment), strict=True)

        def call(x: Tensor, residual: Tensor | None) -> Tensor:
            for step in steps:
                x = step(x, residual)
            return x

        return Runner(call, tuple(weight for weight in weights if weight is not None))


def _step(operator: ChainOp, problem: Problem) -> tuple[Call, Packed | None]:
    """Return one operator's call, and the tensors that it keeps."""
    match operator:
        case LayerNorm(_, _, eps):
            norm = plain_tensors(operator, problem)
            weight, bias = norm.tensors
            return lambda x, _: F.layer_norm(x, x.shape[-1:], weight, bias, eps), norm
        case Dense():
            dense = plain_tensors(operator, problem)
            return lambda x, _: F.linear(x, *dense.tensors), dense
        case Monarch():
            factors = plain_tensors(operator, problem)
            (w1, w2, *biases), out = factors.tensors, operator.out_features
            return lambda x, _: monarch_batched(x, w1, w2, biases[0] if biases else None, out), factors
        case BlockDiagonal(inputs=places):
            blocks = plain_tensors(operator, problem)
            (weights, *added), inputs = blocks.tensors, places.to(problem.device)
            return lambda x, _: block_product(x, weights, inputs, added[0] if added else None), blocks
        case QuantizedDense():
            layer = quantized_tensors(operator, problem)
            return partial(_quantized, layer), layer
        case Gelu():
            return lambda x, _: F.gelu(x), None
        case SelfAttention(num_heads, _, scale):
            return lambda x, log_sizes: sdpa_attention(x, num_heads, scale, None, operator.sizes(log_sizes)), None
        case Add():
            return _add, None


def quantized_tensors(layer: QuantizedDense, problem: Problem) -> Packed:
    """Return the tensors of `QuantizedDense.packed` on the problem's device."""
    return packed(layer, "quantized", problem, lambda: [tensor.to(problem.device) for tensor in layer.packed()])


def norm_tensors(norm: LayerNorm, problem: Problem) -> Packed:
    """Return weight and bias in float32, contiguous, as the kernels take them."""
    tensors = (norm.weight, norm.bias)
    return packed(norm, "float32", problem, lambda: [t.to(problem.device).float().contiguous() for t in tensors])


def _quantized(layer: Packed, x: Tensor, _: Tensor | None) -> Tensor:
    weight, scale, bias, inverse, zero = layer.tensors
    rows = quantize(x.reshape(-1, x.shape[-1]), inverse, zero, weight.dtype)
    return (sums_of(rows, weight) * scale + bias).to(x.dtype).view(*x.shape[:-1], len(weight))


def _add(x: Tensor, residual: Tensor | None) -> Tensor:
    return x + needed(residual)


def plain_tensors(layer: LayerNorm | Dense | Monarch | BlockDiagonal, problem: Problem) -> Packed:
    """Return a layer's own tensors on the problem's device and in its dtype: weight or factors, and bias if any."""
    weights = (layer.w1, layer.w2) if isinstance(layer, Monarch) else (layer.weight,)
    tensors = weights if layer.bias is None else (*weights, layer.bias)
    return packed(layer, "plain", problem, lambda: [t.to(problem.device, problem.dtype).contiguous() for t in tensors])


def finish(y: Tensor, segment: Sequence[ChainOp], residual: Tensor | None) -> Tensor:
    """Apply the element-wise operators at a segment's end to `y` in place."""
    for operator in segment:
        if isinstance(operator, Gelu):
            torch.ops.aten.gelu_(y)
        else:
            y += needed(residual)
    return y
