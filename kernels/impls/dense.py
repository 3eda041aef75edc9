"""Linear layers through BLAS, with Monarch ones multiplied out; the tuner chooses it where that is faster."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..chain_ir import ChainOp, Dense, Monarch, Packed, Problem, kinds
from ..reference import monarch_to_dense
from .base import OTHER_KIND, Runner, packed
from .torch_ops import finish, plain_tensors

LOW_PRECISION = (torch.bfloat16, torch.float16)


class DenseImpl:
    """Runs a linear layer, and GELU or the residual's addition after it.

    On CUDA in bfloat16 and float16, GELU is the product's epilogue, which cuBLAS computes by the tanh approximation:
    its error is 5e-4 at most, a quarter of bfloat16's rounding near 1. In float32 and on a CPU, GELU is exact.
    """

    name = "dense"

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        linear = isinstance(segment[0], Dense | Monarch)
        return None if linear and kinds(segment)[1:] in {(), ("gelu",), ("add",)} else OTHER_KIND

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        layer, *after = segment
        assert isinstance(layer, Dense | Monarch)
        weights = dense_weights(layer, problem)
        weight, bias = weights.tensors[0], weights.tensors[1] if len(weights.tensors) > 1 else None
        if kinds(after) == ("gelu",) and problem.device.type == "cuda" and problem.dtype in LOW_PRECISION:
            return _with_epilogue(weights, weight, bias)

        def call(x: Tensor, residual: Tensor | None) -> Tensor:
            return finish(F.linear(x, weight, bias), after, residual)

        return Runner(call, (weights,))


def dense_weights(layer: Dense | Monarch, problem: Problem) -> Packed:
    """Return weight (out, in) and, if there is one, bias (out,) of a linear layer; a Monarch one is multiplied out."""
    if isinstance(layer, Dense):
        return plain_tensors(layer, problem)
    return packed(layer, "dense", problem, lambda: _multiply_out(layer, problem))


def _multiply_out(layer: Monarch, problem: Problem) -> list[Tensor]:
    exact = torch.promote_types(problem.dtype, torch.float32)
    w1, w2 = (w.to(problem.device, exact) for w in (layer.w1, layer.w2))
    weight = monarch_to_dense(w1, w2, layer.out_features, layer.in_features)
    tensors = [weight] if layer.bias is None else [weight, layer.bias]
    return [tensor.to(problem.device, problem.dtype) for tensor in tensors]


def _with_epilogue(weights: Packed, weight: Tensor, bias: Tensor | None) -> Runner:
    """Compute GELU in the product's epilogue, which needs a bias."""
    if bias is None:
        bias = weight.new_zeros(len(weight))
    epilogue = torch.ops.aten._addmm_activation

    def call(x: Tensor, _: Tensor | None) -> Tensor:
        y = epilogue(bias, x.reshape(-1, x.shape[-1]), weight.t(), use_gelu=True)
        return y.view(*x.shape[:-1], len(weight))

    return Runner(call, (weights,))
