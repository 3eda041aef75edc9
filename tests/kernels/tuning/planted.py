"""Impls of planted speeds and a chain for them: what the tuner is tried on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from milkweed.kernels.chain_ir import Add, ChainOp, Gelu, LayerNorm, Monarch, Packed, Problem, kinds
from milkweed.kernels.impls.base import OTHER_KIND, Impl, Runner
from milkweed.kernels.impls.dense import DenseImpl
from milkweed.kernels.impls.feature_major import FeatureMajorImpl
from milkweed.kernels.impls.torch_ops import EagerImpl
from milkweed.kernels.tuning.chain import Chain
from milkweed.kernels.tuning.plan import Plan, Span
from milkweed.kernels.tuning.timing import Measure
from milkweed.kernels.tuning.tuner import TunedChain, tune_chain

from ..layers import normal

CPU = torch.device("cpu")
PROBLEM = Problem(CPU, torch.float32, 3, 5)


pytestmark = pytest.mark.usefixtures("one_thread")


def mlp(scale: float = 1.0) -> Chain:
    fc1 = Monarch(normal(2, 6, 6, seed=3), normal(2, 8, 6, seed=4), normal(16, seed=5), 12, 16)
    fc2 = Monarch(normal(2, 6, 8, seed=6), normal(2, 6, 6, seed=7) * scale, normal(12, seed=8) * scale, 16, 12)
    return Chain([LayerNorm(normal(12, seed=1), normal(12, seed=2), 1e-6), fc1, Gelu(), fc2, Add()])


@dataclass(frozen=True)
class Planted:
    """An impl for one kind of segment that does whatever the test wants with the right result."""

    name: str
    takes: tuple[str, ...] = ("monarch", "gelu", "monarch", "add")
    spoil: Callable[[Tensor, Tensor, Tensor | None], Tensor] = lambda y, x, residual: y
    reason: str | None = None
    keeps: int = 0

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        return self.reason if kinds(segment) == self.takes else OTHER_KIND

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        whole = EagerImpl().build(segment, problem)
        more = Packed([torch.zeros(self.keeps)])
        return Runner(lambda x, residual: self.spoil(whole(x, residual), x, residual), (*whole.packed, more))


def prices(**seconds: float) -> Measure:
    """A timer: an impl's price for a segment, `torch` by the operator; 1 where none is given. A plan's is the sum."""

    def price(impl: str, span: Span) -> float:
        return seconds.get(impl, 1.0) * (span[1] - span[0] if impl == "torch" else 1)

    def measure(call: object) -> float:
        what, _, impl = str(call).partition(" ")
        if what == "plan":
            bits, _, impls = impl.partition(" ")
            plan = Plan.from_json({"cuts": bits, "engines": impls.split(" | ")})
            return sum(map(price, plan.impls, plan.spans))
        start, end = map(int, what.split(":"))
        return price(impl, (start, end))

    return measure


def tune(impls: Sequence[Impl], measure: Measure, **more: Any) -> TunedChain:
    return tune_chain(mlp(), PROBLEM, [*impls, DenseImpl(), FeatureMajorImpl(), EagerImpl()], measure=measure, **more)
