"""Assembled programs of odd shapes by every instruction set of this CPU, held against their definitions in float64."""

import itertools
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from milkweed.kernels.cpu.assembly.assemble import assemble
from milkweed.kernels.cpu.factors import dense, monarch
from milkweed.kernels.cpu.instruction_sets import SETS, InstructionSet, supported_sets
from milkweed.kernels.cpu.library import LIBRARY, ProgramRunner
from milkweed.kernels.cpu.program import (
    Attention,
    BiasedAttention,
    Branch,
    Convolution,
    Depthwise,
    Embed,
    Factor,
    Head,
    Merge,
    Operator,
    Performer,
    Program,
    Pyramid,
    WindowedAttention,
)
from milkweed.kernels.cpu.quantise import LEVELS, calibrated, quantised
from milkweed.kernels.cpu.reference import evaluate
from milkweed.kernels.cpu.row_operators import InnerNorm, Join, Norm, PostNorm, QkNorm, Renew, RmsNorm, Rotary
from milkweed.kernels.cpu.structs import Assembled

from . import position_programs, vitae_programs, window_programs
from .vitae_programs import images_of

LARGE = 0x7F
"""Bytes of this are large, but finite, in every number type."""

BFLOAT16_ERROR, INT8_ERROR = 0.01, 0.05

LARGER = {"ViTAE, few places": 1.5, "gates": 1.5, "everything": 2}
"""Times as much error: where the mean is over four tokens, and where what is rounded is a product.

Of bfloat16's, rounding weights and pixels makes 0.006."""

SHAPES = {
    "tokens": {"size": 32, "patch": 16},
    "small patches": {"size": 20, "patch": 5},
    "wide patches": {"size": 72, "patch": 24},
    "odd": {"size": 48, "width": 80, "head_dim": 16, "hidden": 200, "classes": 7},
    "long": {"size": 112, "width": 64, "head_dim": 64},
    "two": {"nblocks": 2},
    "four": {"nblocks": 4, "everywhere": True},
    "three": {"nblocks": 3, "width": 96, "hidden": 72 * 3, "head_dim": 32},
    "padded": {"nblocks": 4, "width": 80, "hidden": 150, "head_dim": 16, "everywhere": True},
    "merged": {"size": 112, "width": 96, "head_dim": 32, "merged": 11},
    "merged odd": {"size": 96, "patch": 16, "width": 48, "head_dim": 16, "merged": 5, "hidden": 72},
    "eight": {"nblocks": 8, "width": 128, "head_dim": 32, "everywhere": True},
    "merged Monarch": {"size": 80, "nblocks": 2, "everywhere": True, "merged": 7},
    "pooled": {"size": 80, "nblocks": 2, "pooled": True},
    "runs of three": {"nblocks": 8, "width": 192, "head_dim": 64, "everywhere": True},
}


def made(
    size: int = 64,
    patch: int = 16,
    width: int = 64,
    head_dim: int = 32,
    hidden: int = 256,
    classes: int = 10,
    nblocks: int = 1,
    everywhere: bool = False,
    merged: int = 0,
    pooled: bool = False,
) -> Program:
    """A program of two blocks with random weights; with `everywhere` all linear layers are Monarch, else the MLPs.

    With `pooled` the last block computes the first token alone, and forgets what it was."""
    rng, number = np.random.default_rng(0), itertools.count()

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) / np.sqrt(shape[-1])

    def layer(inputs: int, outputs: int, structured: bool, gain: float = 1.2, **options: Any) -> list[Factor]:
        bias, options["name"] = normal(1, outputs)[0], f"layer {next(number)}"
        if nblocks == 1 or not structured:
            return [dense(normal(outputs, inputs) * gain, bias, **options)]
        p, s = -(-inputs // nblocks), -(-outputs // nblocks)
        r = min(p, s)
        return monarch(normal(nblocks, r, p) * gain, normal(nblocks, s, r), bias, outputs, **options)

    def norm() -> Norm:
        return Norm(1 + 0.3 * rng.standard_normal(width), normal(1, width)[0], 1e-6)

    operators: list[Norm | Factor | Attention] = []
    for block in range(2 if not merged else 4):
        last = pooled and block == 1
        operators += [norm(), *layer(width, 3 * width, everywhere, 0.5), Attention(width // head_dim, head_dim, last)]
        operators += [Renew(Norm(np.zeros(width), np.zeros(width), 1e-6))] * last
        operators += layer(width, width, everywhere, adds=True)
        if merged and block in (0, 2):
            operators.append(Merge(width // head_dim, head_dim, 1, merged, 0.1 * block))
        operators.append(norm())
        operators += [*layer(width, hidden, True, gelu=True), *layer(hidden, width, True, adds=True)]
    tokens = (size // patch) ** 2 + 1
    embed = Embed(
        normal(width, 3, patch, patch) / patch, normal(1, width)[0], rng.standard_normal((tokens, width)), size
    )
    return Program(embed, operators, Head(norm(), dense(normal(classes, width), normal(1, classes)[0], name="head")))


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The root mean square of the differences, as a share of the values'."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def run(assembled: Assembled, images: np.ndarray) -> np.ndarray:
    runner = ProgramRunner(assembled, LIBRARY)
    return runner(images)


VITS = {name: partial(made, **shape) for name, shape in SHAPES.items()}
VITS |= {name: partial(position_programs.made, **shape) for name, shape in position_programs.SHAPES.items()}
VITS |= {name: partial(window_programs.made, **shape) for name, shape in window_programs.SHAPES.items()}
VITAES = {name: partial(vitae_programs.made, **shape) for name, shape in vitae_programs.SHAPES.items()}
PROGRAMS: dict[str, Callable[[], Program]] = {**VITS, **{f"ViTAE, {name}": make for name, make in VITAES.items()}}


def some(names: Iterable[str], quick: Collection[str]) -> list[Any]:
    """Parameters of which only `quick` ones, and ViTs, run in `make test`."""
    return [pytest.param(name, marks=() if name in {*VITS, *quick} else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", some(PROGRAMS, ["ViTAE, groups", "ViTAE, odd"]))
def test_both_number_types_are_near_the_definition(name: str, isa: InstructionSet) -> None:
    program = PROGRAMS[name]()
    images, read = images_of(program, 3), dict[str, np.ndarray]()
    wanted = evaluate(program, images.astype(np.float64), lambda factor, x: read.update({factor.name: x}))
    embedding = read[program.head.classifier.name]

    def check(program: Program, limit: float) -> None:
        assembled = assemble(program, isa)
        found = ProgramRunner(assembled, LIBRARY).outputs(images)
        assert error(found[:, assembled.width :], wanted) < limit
        assert found.shape[1] == embedding.shape[1] + wanted.shape[1]
        assert error(found[:, : assembled.width], embedding) < limit

    larger = LARGER.get(name, 1)
    check(program, larger * BFLOAT16_ERROR)
    maxima = calibrated(program, [images])
    seven_bits = 1 if isa.rounding.levels == LEVELS else 1.5
    check(quantised(program, maxima, isa.rounding), larger * INT8_ERROR * (1 if name in VITS else seven_bits))
    check(quantised(program, maxima), larger * INT8_ERROR * seven_bits)  # made on a CPU with VNNI


OF_EVERY_STEP = [
    "odd",
    "padded",
    "merged odd",
    "pooled",
    "everything",
    "windows, many kinds",
    "depthwise, wide",
    "values",
    "ViTAE, odd",
    "ViTAE, few groups",
    "ViTAE, class token, dense branch",
]


@pytest.mark.parametrize("name", some(OF_EVERY_STEP, ["ViTAE, odd"]))
@pytest.mark.parametrize("eight_bits", [False, True])
def test_an_image_has_one_answer_in_any_company_and_memory(name: str, eight_bits: bool, isa: InstructionSet) -> None:
    program = PROGRAMS[name]()
    images = images_of(program, 5)
    if eight_bits:
        program = quantised(program, calibrated(program, [images]), isa.rounding)
    runner = ProgramRunner(assemble(program, isa), LIBRARY)
    outputs = runner.outputs
    together = outputs(images)
    alone = np.concatenate([outputs(image[None]) for image in images])
    assert np.array_equal(together, alone)
    assert np.array_equal(outputs(np.ascontiguousarray(images[::-1])), together[::-1])
    runner._own.arena[:] = LARGE
    assert np.array_equal(outputs(images), together)


@pytest.mark.parametrize("size", [64, 352, 384])
def test_sums_of_an_attention_fit_where_all_numbers_are_their_largest(size: int, isa: InstructionSet) -> None:
    program = made(size=size, head_dim=64)
    program.embed.weight[:] = 0
    program.embed.start[:] = program.embed.start[0]
    for factor, reader in itertools.pairwise(program.operators):
        if isinstance(factor, Factor) and isinstance(reader, Attention):
            factor.weight[:] = factor.weight[:, :1]
            factor.bias[:] = factor.bias[0]
    images = images_of(program, 1)
    assert error(run(assemble(program, isa), images), evaluate(program, images.astype(np.float64))) < BFLOAT16_ERROR


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
    "a convolution's bias": lambda o: replace(o, bias=0 * o.bias) if isinstance(o, Depthwise) else o,
}


def pad(norm: Norm) -> Norm:
    """The norm with its padding counted."""
    end = np.zeros(-len(norm.weight) % 16)
    return replace(norm, weight=np.append(norm.weight, end), bias=np.append(norm.bias, end))


MISTAKES = {
    f"positions: {name}": (VITS["norms behind" if "adds" in name else "everything"], change)
    for name, change in POSITION_MISTAKES.items()
}
MISTAKES |= {
    f"windows: {name}": (VITS["depthwise" if name[0] == "a" or name == "taps" else "windows, many kinds"], change)
    for name, change in WINDOW_MISTAKES.items()
}
MISTAKES |= {f"ViT: {name}": (VITS["merged Monarch"], change) for name, change in VIT_MISTAKES.items()} | {
    f"ViTAE in {groups} groups: {name}": (partial(vitae_programs.made, groups=groups), change)
    for groups in (4, 16)
    for name, change in VITAE_MISTAKES.items()
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_more_than_rounding(mistake: str) -> None:
    """One instruction set is enough: whether a kernel obeys what a program says does not depend on the instructions."""
    make, change = MISTAKES[mistake]
    program, isa = make(), supported_sets()[0]
    images = images_of(program, 3)
    wrong = replace(program, operators=[change(each) for each in program.operators])
    wanted = evaluate(program, images.astype(np.float64))
    assert error(run(assemble(wrong, isa), images), wanted) > 3 * BFLOAT16_ERROR


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (partial(made, width=40, head_dim=8), "40 channels: the kernels take multiples of 16"),
        (partial(made, width=48, head_dim=24), "heads of 24 channels: the kernels take multiples of 16"),
        (partial(made, size=64, patch=16, merged=8), "8 of 16 tokens are to be merged: at most 7 can be"),
        (
            partial(vitae_programs.made, width=48, embed=24, dilations=(1,)),
            "24 channels: the kernels take multiples of 16",
        ),
    ],
)
def test_sizes_that_the_kernels_do_not_take_are_named(make: Callable[[], Program], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        assemble(make(), next(iter(SETS)))


def test_images_of_another_shape_are_refused(isa: InstructionSet) -> None:
    runner = ProgramRunner(assemble(made(), isa), LIBRARY)
    for shape in ((1, 3, 32, 32), (3, 64, 64), (1, 1, 64, 64)):
        with pytest.raises(ValueError, match=re.escape(f"images of shape {shape}: (n, 3, 64, 64) is taken")):
            runner(np.zeros(shape, np.float32))
    for images in (np.zeros((1, 3, 64, 64)), np.zeros((1, 3, 64, 128), np.float32)[..., ::2]):
        with pytest.raises(ValueError, match="contiguous float32 is taken"):
            runner(images)
