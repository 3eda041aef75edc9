"""Monarch layers and MLPs with features outermost, so that both permutations are strides."""

from collections.abc import Sequence

from torch import Tensor

from ..chain_ir import ChainOp, Monarch, Packed, Problem, kinds
from ..feature_major import feature_major_linear, feature_major_mlp
from ..packing import PackedMonarch, pack_monarch
from .base import OTHER_KIND, Runner, packed
from .torch_ops import finish

LAYER = {("monarch",), ("monarch", "gelu"), ("monarch", "add")}
MLP = {("monarch", "gelu", "monarch"), ("monarch", "gelu", "monarch", "add")}


class FeatureMajorImpl:
    """Runs a Monarch layer or a whole MLP of two, and the residual's addition after it; not on CUDA.

    There GELU would be a launch of its own, and the bias that is stored beside w2 takes the rows of w2 off 16 bytes.
    """

    name = "feature_major"

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        if kinds(segment) not in LAYER | MLP:
            return OTHER_KIND
        return "not for CUDA: dense and the kernels take its place" if problem.device.type == "cuda" else None

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        mlp = kinds(segment) in MLP
        layers = [operator for operator in segment if isinstance(operator, Monarch)]
        weights = tuple(_weights(layer, problem) for layer in layers)
        parts = [_layer(layer, weight) for layer, weight in zip(layers, weights, strict=True)]
        after = segment[3:] if mlp else segment[1:]
        run = feature_major_mlp if mlp else feature_major_linear

        def call(x: Tensor, residual: Tensor | None) -> Tensor:
            y = run(x.reshape(-1, x.shape[-1]), *parts)
            return finish(y.view(*x.shape[:-1], y.shape[-1]), after, residual)

        return Runner(call, weights)


def _weights(layer: Monarch, problem: Problem) -> Packed:
    def make() -> tuple[Tensor, Tensor]:
        w1, w2, bias = layer.on(problem.device)
        widths = layer.in_features, layer.out_features
        whole = pack_monarch(w1, w2, bias, in_features=widths[0], out_features=widths[1], dtype=problem.dtype)
        return whole.w1, whole.w2

    return packed(layer, "feature_major", problem, make)


def _layer(layer: Monarch, weights: Packed) -> PackedMonarch:
    w1, w2 = weights.tensors
    return PackedMonarch(w1, w2, layer.shape, layer.in_features, layer.out_features)
