"""A Monarch layer as two batched products with two permutation copies, which every device can run."""

from collections.abc import Sequence

from torch import Tensor

from ..chain_ir import Monarch, Operator, Problem, kinds
from .base import OTHER_KIND, Runner
from .torch_ops import batched_linear, factor_parameters, finish


class BatchedImpl:
    """Runs a Monarch layer, and GELU or the residual's addition after it in place."""

    name = "batched"

    def refuses(self, segment: Sequence[Operator], problem: Problem) -> str | None:
        return None if kinds(segment) in {("monarch",), ("monarch", "gelu"), ("monarch", "add")} else OTHER_KIND

    def build(self, segment: Sequence[Operator], problem: Problem) -> Runner:
        layer, *after = segment
        assert isinstance(layer, Monarch)
        factors = factor_parameters(layer, problem)

        def call(x: Tensor, residual: Tensor | None) -> Tensor:
            return finish(batched_linear(x, layer, factors.tensors), after, residual)

        return Runner(call, (factors,))
