"""Convolutions, performers and whole ViTAEs by every instruction set of this CPU, held against their definitions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from milkweed.kernels.cpu import structs
from milkweed.kernels.cpu.assemble import assemble
from milkweed.kernels.cpu.instruction_sets import SETS
from milkweed.kernels.cpu.library import LIBRARY, ProgramRunner
from milkweed.kernels.cpu.packing import InstructionSet
from milkweed.kernels.cpu.program import (
    Branch,
    Convolution,
    Head,
    Operator,
    Performer,
    Program,
    Pyramid,
    convolution,
    dense,
)
from milkweed.kernels.cpu.quantise import LEVELS, calibrated, channels_of, quantised
from milkweed.kernels.cpu.reference import evaluate

from .test_programs import BFLOAT16_ERROR, INT8_ERROR, LARGE, error, run
from .vitae_programs import SHAPES, images_of, made

SOME_LEVELS = 0.002
"""What a few activations make that are rounded to the next level, since floats were added in another order."""

FEW_PLACES = 0.015
"""bfloat16's error where the mean is over four tokens; rounding weights and pixels alone makes 0.006 of it."""


def in_8_bits(program: Program, images: np.ndarray, isa: InstructionSet) -> Program:
    return quantised(program, calibrated(program, [images]), isa.rounding)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.slow_beyond(12)
def test_both_number_types_are_near_the_definition(shape: str, isa: InstructionSet) -> None:
    program = made(**SHAPES[shape])
    images = images_of(program, 3)
    wanted = evaluate(program, images.astype(np.float64))
    limit = FEW_PLACES if shape == "few places" else BFLOAT16_ERROR
    assert error(run(assemble(program, isa), images), wanted) < limit
    limit = INT8_ERROR * (1 if isa.rounding.levels == LEVELS else 1.5)  # weights of 7 bits
    assert error(run(assemble(in_8_bits(program, images, isa), isa), images), wanted) < limit


@pytest.mark.parametrize("shape", ["odd", "few groups", "class token, dense branch"])
@pytest.mark.parametrize("eight_bits", [False, True])
@pytest.mark.slow_beyond(8)
def test_neither_company_nor_memory_changes_an_answer(shape: str, eight_bits: bool, isa: InstructionSet) -> None:
    program = made(**SHAPES[shape])
    images = images_of(program, 5)
    runner = ProgramRunner(assemble(in_8_bits(program, images, isa) if eight_bits else program, isa), LIBRARY)
    together = runner(images)
    assert np.array_equal(np.concatenate([runner(image[None]) for image in images]), together)
    assert np.array_equal(runner(np.ascontiguousarray(images[::-1])), together[::-1])
    runner._own.arena[:] = LARGE
    assert np.array_equal(runner(images), together)


def changed(operator: Operator, change: Callable[[Convolution], Convolution]) -> Operator:
    """The operator with all of its convolutions changed."""
    if not isinstance(operator, Pyramid | Branch):
        return operator
    return replace(operator, convolutions=[change(each) for each in operator.convolutions])


def factor(convolution: Convolution, **values: Any) -> Convolution:
    return replace(convolution, factor=replace(convolution.factor, **values))


MISTAKES: dict[str, Callable[[Operator], Operator]] = {
    "a bias": lambda o: changed(o, lambda c: factor(c, bias=0 * c.factor.bias)),
    "SiLU": lambda o: changed(o, lambda c: factor(c, silu=not c.factor.adds and c.factor.silu)),
    "GELU": lambda o: changed(o, lambda c: factor(c, gelu=False)),
    "taps turned": lambda o: changed(o, lambda c: factor(c, inputs=c.factor.inputs[:, ::-1])),
    "a dilation": lambda o: changed(o, lambda c: replace(c, dilation=1, padding=1) if c.dilation > 1 else c),
    "the order of a pyramid": lambda o: replace(o, convolutions=o.convolutions[::-1]) if isinstance(o, Pyramid) else o,
    "features": lambda o: replace(o, w=0 * o.w) if isinstance(o, Performer) else o,
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("groups", [4, 16])
@pytest.mark.slow_beyond(12)
def test_a_mistake_is_more_than_rounding(mistake: str, groups: int, isa: InstructionSet) -> None:
    program = made(groups=groups)
    images = images_of(program, 3)
    wanted = evaluate(program, images.astype(np.float64))
    wrong = replace(program, operators=[MISTAKES[mistake](each) for each in program.operators])
    assert error(run(assemble(wrong, isa), images), wanted) > 3 * BFLOAT16_ERROR


def test_a_performer_whose_features_vanish_divides_by_its_epsilon(isa: InstructionSet) -> None:
    program = made()
    large = [replace(each, eps=1.0) if isinstance(each, Performer) else each for each in program.operators]
    images = images_of(program, 2)
    wanted = evaluate(replace(program, operators=large), images.astype(np.float64))
    assert error(evaluate(program, images.astype(np.float64)), wanted) > 3 * BFLOAT16_ERROR
    assert error(run(assemble(replace(program, operators=large), isa), images), wanted) < BFLOAT16_ERROR


def test_silu_is_as_near_as_its_comment_says(isa: InstructionSet) -> None:
    """One place, whose sums are exact: a pixel times powers of two; what SiLU of them adds to a stream of zeros."""
    rng = np.random.default_rng(0)
    weight = np.exp2(rng.integers(-8, 7, (4096, 1, 1, 1))) * rng.choice([-1.0, 1.0], (4096, 1, 1, 1))
    weight = np.concatenate([weight, 0 * weight, 0 * weight], axis=1)
    zeros = convolution(np.zeros((4096, 3, 1, 1)), None, 1, name="zeros")
    branch = Branch([convolution(weight, None, 1, silu=True, adds=True, name="silu")])
    program = made()
    head = Head(None, dense(np.zeros((1, 4096)), None), mean_from=0)
    program = replace(program, embed=replace(program.embed, size=1), operators=[Pyramid([zeros]), branch], head=head)
    assembled = assemble(program, isa)
    stream = int(assembled.buffers["offset"][-3 - 1])  # before the last step's three, the mean reads it
    for pixel in np.linspace(1, 2, 129)[:-1].astype(np.float32):  # exact in bfloat16
        runner = ProgramRunner(assembled, LIBRARY)
        runner(np.full((1, 3, 1, 1), pixel, np.float32))
        found = runner._own.arena[stream : stream + 4 * 4096].view(np.float32)
        x = weight[:, 0, 0, 0] * pixel
        wanted = x / (1 + np.exp(-x))
        assert np.all(np.abs(found - wanted) <= 1.5e-4 * np.abs(wanted) + 1e-20)


@pytest.mark.parametrize("shape", ["groups", "odd", "few places", "Monarch", "class token"])
@pytest.mark.slow_beyond(6)
def test_groups_in_lanes_are_the_product_with_zeros_between_them(
    shape: str, isa: InstructionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = made(**SHAPES[shape])
    images = images_of(program, 3)
    eight_bits = in_8_bits(program, images, isa)
    in_lanes = assemble(eight_bits, isa)
    assert structs.GROUPED in in_lanes.steps["kind"]
    monkeypatch.setattr("milkweed.kernels.cpu.program.LEAST_GROUPS", 1000)
    product = assemble(eight_bits, isa)
    assert structs.GROUPED not in product.steps["kind"]
    assert error(run(in_lanes, images), run(product, images)) < SOME_LEVELS


def test_all_but_the_classifier_is_quantised() -> None:
    apart, dense = (channels_of(made(**SHAPES[each])).keys() for each in ("groups", "few groups"))
    assert apart == dense
    assert {"layer 0", "layer 3"} <= apart  # of the image
    assert "head" not in apart


def test_sizes_that_the_kernels_do_not_take_are_named() -> None:
    with pytest.raises(ValueError, match="24 channels: the kernels take multiples of 16"):
        assemble(made(width=48, embed=24, dilations=(1,)), next(iter(SETS)))
