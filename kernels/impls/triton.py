"""Monarch layers and MLPs on Triton as impls, one for each tile variant."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..blocked import Activation, BlockedMonarch
from ..chain_ir import ChainOp, Monarch, Problem, kinds
from ..native.stamp import source_hash
from ..triton.inner import ROWS, InnerShape
from ..triton.layout import sort_layer, sort_mlp
from ..triton.linear import SOURCES, inner_refusal, missing_for_triton, triton_linear, triton_mlp, triton_refusal
from ..triton.tiles import SQUARE, VARIANTS, tile_refusal
from .base import LINEAR, OTHER_KIND, Impl, Runner, Tiled, on_rows, packed

AROUND_INNER = VARIANTS.index(replace(SQUARE, tma=True))
"""The tile of the launches before and behind an MLP's inner half: two programs share a multiprocessor."""

MLP = {("monarch", "gelu", "monarch"), ("monarch", "gelu", "monarch", "add")}


class Triton(Tiled):
    """The common part of the impls."""

    def unusable(self, layers: Sequence[Monarch], problem: Problem) -> str | None:
        """Return why Triton or the variant cannot be used there; None if it can."""
        if self.stands_in(problem):
            return None
        refusals = (triton_refusal(layer.shape, problem.dtype, problem.device) for layer in layers)
        refusal = next(filter(None, refusals), None)
        return refusal or tile_refusal(self.tile, problem.rows, torch.cuda.get_device_capability(problem.device))


class TritonLinear(Triton):
    """Runs a Monarch layer in two launches, with GELU and the residual's addition in the second."""

    kernel = "triton"

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        layer = segment[0]
        if not isinstance(layer, Monarch) or kinds(segment) not in LINEAR:
            return OTHER_KIND
        return self.unusable([layer], problem)

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        layer = segment[0]
        assert isinstance(layer, Monarch)
        weights = packed(layer, "triton", problem, lambda: _tensors(_sorted(layer, problem)))
        whole = _layer(weights.tensors, layer.shape.p, layer.out_features)
        act = Activation.GELU if "gelu" in kinds(segment) else Activation.NONE

        def kernel(x: Tensor, residual: Tensor | None) -> Tensor:
            return triton_linear(x, whole, residual, int(act), self.tile)

        return on_rows(segment, layer.out_features, kernel, weights)


class TritonMlp(Triton):
    """Runs an MLP of two Monarch layers in four launches without permutations; the last one adds the residual."""

    kernel = "triton_mlp"

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        if kinds(segment) not in MLP:
            return OTHER_KIND
        return self.unusable(_layers(segment), problem)

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        fc1, fc2 = _layers(segment)
        weights = packed(fc1, "triton_mlp", problem, lambda: _mlp(fc1, fc2, problem), fc2)
        middle = 3 if fc1.bias is not None else 2
        first = _layer(weights.tensors[:middle], fc1.shape.p, None)
        second = _layer(weights.tensors[middle:], first.out_features // fc2.shape.K, fc2.out_features)

        def kernel(x: Tensor, residual: Tensor | None) -> Tensor:
            return self.launch(x, first, second, residual)

        return on_rows(segment, fc2.out_features, kernel, weights)

    def launch(self, x: Tensor, fc1: BlockedMonarch, fc2: BlockedMonarch, residual: Tensor | None) -> Tensor:
        return triton_mlp(x, fc1, fc2, residual, self.tile)


class GluonMlp(TritonMlp):
    """Runs an MLP in three launches on Hopper; the second one, in Gluon, keeps hidden activations on the chip."""

    kernel = "gluon_mlp"

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        if kinds(segment) not in MLP:
            return OTHER_KIND
        fc1, fc2 = _layers(segment)
        shape = InnerShape.sorted(fc1.shape, fc2.shape, fc1.out_features)
        return inner_refusal(shape, self.tile, problem.rows, problem.dtype, problem.device, on_cpu=self.on_cpu)

    def launch(self, x: Tensor, fc1: BlockedMonarch, fc2: BlockedMonarch, residual: Tensor | None) -> Tensor:
        return triton_mlp(x, fc1, fc2, residual, AROUND_INNER, self.tile)


def triton_impls(*, on_cpu: bool = False) -> list[Impl]:
    """Return all in every tile variant."""
    variants = ((GluonMlp, ROWS), (TritonMlp, VARIANTS), (TritonLinear, VARIANTS))
    return [kind(tile, triton_build(), on_cpu) for kind, tiles in variants for tile in range(len(tiles))]


def triton_build() -> str:
    """Return the hash of the sources of Triton's kernels; `none` where they cannot run."""
    return "none" if missing_for_triton() else source_hash(SOURCES, (".py",))


def _layers(segment: Sequence[ChainOp]) -> tuple[Monarch, Monarch]:
    fc1, fc2 = (operator for operator in segment if isinstance(operator, Monarch))
    return fc1, fc2


def _sorted(layer: Monarch, problem: Problem) -> BlockedMonarch:
    return sort_layer(*layer.on(problem.device), layer.out_features, problem.dtype)


def _mlp(fc1: Monarch, fc2: Monarch, problem: Problem) -> list[Tensor | None]:
    layers = sort_mlp(_sorted(fc1, problem), _sorted(fc2, problem), fc1.out_features)
    return [tensor for layer in layers for tensor in _tensors(layer)]


def _tensors(layer: BlockedMonarch) -> list[Tensor | None]:
    return [layer.w1, layer.w2, layer.bias]


def _layer(tensors: Sequence[Tensor], p: int, out_features: int | None) -> BlockedMonarch:
    """Rebuild a layer from its tensors; with `out_features` None it has all outputs, padding included."""
    w1, w2, *bias = tensors
    return BlockedMonarch(w1, w2, bias[0] if bias else None, p, out_features or w2.shape[0] * w2.shape[1])
