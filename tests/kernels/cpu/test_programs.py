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
from milkweed.kernels.cpu.instruction_sets import SETS, InstructionSet
from milkweed.kernels.cpu.library import LIBRARY, ProgramRunner
from milkweed.kernels.cpu.program import (
    Attention,
    Factor,
    Program,
)
from milkweed.kernels.cpu.quantise import LEVELS, calibrated, quantised
from milkweed.kernels.cpu.reference import evaluate
from milkweed.kernels.cpu.row_operators import InnerNorm, Renew
from milkweed.kernels.cpu.structs import Assembled

from . import mixing_programs, position_programs, vit_programs, vitae_programs, window_programs
from .parts import images_of
from .vit_programs import made

LARGE = 0x7F
"""Bytes of this are large, but finite, in every number type."""

BFLOAT16_ERROR, INT8_ERROR = 0.01, 0.05

LARGER = {
    "ViTAE, few places": 1.5,
    "gates": 1.5,
    "everything": 2,
    "depthwise, narrow": 1.5,
    "merged Monarch": 1.5,
}
"""Times as much error: where the mean is over four tokens, where what is rounded is a product, and where rounding
decides in all layers which tokens are merged.

Of bfloat16's, rounding weights and pixels makes 0.006."""


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The root mean square of the differences, as a share of the values'."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def run(assembled: Assembled, images: np.ndarray) -> np.ndarray:
    runner = ProgramRunner(assembled, LIBRARY)
    return runner(images)


VITS = {name: partial(made, **shape) for name, shape in vit_programs.SHAPES.items()}
VITS |= {name: partial(position_programs.made, **shape) for name, shape in position_programs.SHAPES.items()}
VITS |= {name: partial(window_programs.made, **shape) for name, shape in window_programs.SHAPES.items()}
VITS |= {name: partial(mixing_programs.made, **shape) for name, shape in mixing_programs.SHAPES.items()}
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
    "mixing, odd",
    "a start, odd",
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


@pytest.mark.parametrize("name", some([*OF_EVERY_STEP[:3], "everything", "mixing, odd", "three"], ["ViTAE, odd"]))
@pytest.mark.parametrize("second", [0, 1])
def test_layers_in_bfloat16_among_others_in_8_bits(name: str, second: int, isa: InstructionSet) -> None:
    program = PROGRAMS[name]()
    images = images_of(program, 3)
    maxima = dict(list(calibrated(program, [images]).items())[second::2])
    answers = run(assemble(quantised(program, maxima, isa.rounding), isa), images)
    seven_bits = 1 if isa.rounding.levels == LEVELS else 1.5
    limit = LARGER.get(name, 1) * INT8_ERROR * seven_bits
    assert error(answers, evaluate(program, images.astype(np.float64))) < limit


def test_a_norm_of_answers_is_found_behind_what_leaves_them_alone(isa: InstructionSet) -> None:
    program = position_programs.made(inner=True)
    place = next(i for i, operator in enumerate(program.operators) if isinstance(operator, InnerNorm))
    renewed = [*program.operators[:place], Renew(program.head.norm), *program.operators[place:]]
    program = replace(program, operators=renewed)
    images = images_of(program, 2)
    assert error(run(assemble(program, isa), images), evaluate(program, images.astype(np.float64))) < BFLOAT16_ERROR


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
