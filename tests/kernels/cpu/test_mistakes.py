"""A mistake in any part of a program is more than rounding: what programs say is what the kernels obey."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from milkweed.kernels.cpu.assembly.assemble import assemble
from milkweed.kernels.cpu.instruction_sets import supported_sets
from milkweed.kernels.cpu.program import (
    Attention,
    BiasedAttention,
    Branch,
    Convolution,
    Depthwise,
    Factor,
    Merge,
    Operator,
    Performer,
    Program,
    Pyramid,
    ResponseNorm,
    WindowedAttention,
)
from milkweed.kernels.cpu.reference import evaluate
from milkweed.kernels.cpu.row_operators import (
    InnerNorm,
    Join,
    Norm,
    PostNorm,
    QkNorm,
    RmsNorm,
    Rotary,
    StartTokens,
    Unmerge,
)

from . import vitae_programs
from .parts import images_of
from .test_programs import BFLOAT16_ERROR, VITS, error, run


def changed(operator: Operator, change: Callable[[Convolution], Convolution]) -> Operator:
    """The operator with all of its convolutions changed."""
    if not isinstance(operator, Pyramid | Branch):
        return operator
    return replace(operator, convolutions=[change(each) for each in operator.convolutions])


def factor(convolution: Convolution, **values: Any) -> Convolution:
    return replace(convolution, factor=replace(convolution.factor, **values))


VIT_MISTAKES: dict[str, Callable[[Operator], Operator]] = {
    "a bias": lambda each: replace(each, bias=0 * each.bias) if isinstance(each, Factor) else each,
    "epsilon": lambda each: replace(each, eps=0.1) if isinstance(each, Norm) else each,
    "GELU": lambda each: replace(each, gelu=False) if isinstance(each, Factor) else each,
    "an input": lambda each: replace(each, inputs=each.inputs[:, ::-1]) if isinstance(each, Factor) else each,
    "an output": lambda each: replace(each, outputs=each.outputs[::-1]) if isinstance(each, Factor) else each,
    "a head": lambda each: (
        replace(each, heads=2 * each.heads, head_dim=16) if isinstance(each, Attention | Merge) else each
    ),
    "a merged token": lambda each: replace(each, count=each.count - 1) if isinstance(each, Merge) else each,
    "protection": lambda each: replace(each, protect=1.0) if isinstance(each, Merge) else each,
}
VITAE_MISTAKES: dict[str, Callable[[Operator], Operator]] = {
    "a bias": lambda o: changed(o, lambda c: factor(c, bias=0 * c.factor.bias)),
    "SiLU": lambda o: changed(o, lambda c: factor(c, silu=not c.factor.adds and c.factor.silu)),
    "GELU": lambda o: changed(o, lambda c: factor(c, gelu=False)),
    "taps turned": lambda o: changed(o, lambda c: factor(c, inputs=c.factor.inputs[:, ::-1])),
    "a dilation": lambda o: changed(o, lambda c: replace(c, dilation=1, padding=1) if c.dilation > 1 else c),
    "the order of a pyramid": lambda o: replace(o, convolutions=o.convolutions[::-1]) if isinstance(o, Pyramid) else o,
    "features": lambda o: replace(o, w=0 * o.w) if isinstance(o, Performer) else o,
}
POSITION_MISTAKES: dict[str, Callable[[Operator], Operator]] = {
    "biases": lambda o: replace(o, table=0 * o.table) if isinstance(o, BiasedAttention) else o,
    "keys of biases": lambda o: replace(o, index=o.index.T) if isinstance(o, BiasedAttention) else o,
    "sines": lambda o: replace(o, sin=-o.sin) if isinstance(o, Rotary) else o,
    "angles of tokens": lambda o: replace(o, cos=o.cos[::-1], sin=o.sin[::-1]) if isinstance(o, Rotary) else o,
    "a norm that adds": lambda o: PostNorm(replace(o.norm, weight=0 * o.norm.weight)) if isinstance(o, PostNorm) else o,
    "a norm of keys": lambda o: replace(o, keys=o.queries) if isinstance(o, QkNorm) else o,
    "padding": lambda o: InnerNorm(pad(o.norm)) if isinstance(o, InnerNorm) else o,
    "a mean": lambda o: Norm(o.weight, o.bias, o.eps) if isinstance(o, RmsNorm) else o,
}


WINDOW_MISTAKES: dict[str, Callable[[Operator], Operator]] = {
    "kinds": lambda o: replace(o, kinds=o.kinds[::-1]) if isinstance(o, WindowedAttention) else o,
    "windows": lambda o: replace(o, windows=o.windows[::-1]) if isinstance(o, WindowedAttention) else o,
    "tokens of windows": lambda o: replace(o, windows=o.windows[:, ::-1]) if isinstance(o, WindowedAttention) else o,
    "the order of what is joined": lambda o: Join(o.rows[:, ::-1]) if isinstance(o, Join) else o,
    "joined tokens": lambda o: Join(o.rows[::-1]) if isinstance(o, Join) else o,
    "taps": lambda o: replace(o, weight=o.weight.swapaxes(1, 2)) if isinstance(o, Depthwise) else o,
    "an order of tokens": lambda o: (
        replace(o, inputs=o.inputs[:, ::-1]) if isinstance(o, Factor) and o.inputs.size == 81 else o
    ),
    "a first token": lambda o: StartTokens(o.start[::-1]) if isinstance(o, StartTokens) else o,
    "response": lambda o: replace(o, weight=0 * o.weight) if isinstance(o, ResponseNorm) else o,
    "a convolution's bias": lambda o: replace(o, bias=0 * o.bias) if isinstance(o, Depthwise) else o,
}


def pad(norm: Norm) -> Norm:
    """The norm with its padding counted."""
    end = np.zeros(-len(norm.weight) % 16)
    return replace(norm, weight=np.append(norm.weight, end), bias=np.append(norm.bias, end))


MISTAKES: dict[str, tuple[Callable[[], Program], Callable[[Operator], Operator | None]]] = {
    f"positions: {name}": (VITS["norms behind" if "adds" in name else "everything"], change)
    for name, change in POSITION_MISTAKES.items()
}
WHERE = {
    "an order of tokens": "mixing, odd",
    "a first token": "a start, odd",
    "taps": "depthwise",
    "a convolution's bias": "depthwise",
    "response": "response norms",
}
MISTAKES |= {
    f"windows: {name}": (VITS[WHERE.get(name, "windows, many kinds")], change)
    for name, change in WINDOW_MISTAKES.items()
}
MISTAKES |= {f"ViT: {name}": (VITS["merged Monarch"], change) for name, change in VIT_MISTAKES.items()} | {
    f"ViTAE in {groups} groups: {name}": (partial(vitae_programs.made, groups=groups), change)
    for groups in (4, 16)
    for name, change in VITAE_MISTAKES.items()
}
MISTAKES["ViT: a mean of what is left"] = VITS["merged, a mean"], lambda o: None if isinstance(o, Unmerge) else o


@pytest.mark.slow_beyond(10)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_more_than_rounding(mistake: str) -> None:
    """One instruction set is enough: whether a kernel obeys what a program says does not depend on the instructions."""
    make, change = MISTAKES[mistake]
    program, isa = make(), supported_sets()[0]
    images = images_of(program, 3)
    wrong = replace(program, operators=[o for o in map(change, program.operators) if o is not None])
    wanted = evaluate(program, images.astype(np.float64))
    assert error(run(assemble(wrong, isa), images), wanted) > 3 * BFLOAT16_ERROR
