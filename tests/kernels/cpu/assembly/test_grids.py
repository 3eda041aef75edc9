"""Convolutions, performers and whole ViTAEs by every instruction set of this CPU, held against their definitions."""

from dataclasses import replace

import numpy as np
import pytest

from milkweed.kernels.cpu import structs
from milkweed.kernels.cpu.assembly.assemble import assemble
from milkweed.kernels.cpu.factors import convolution, dense
from milkweed.kernels.cpu.instruction_sets import InstructionSet
from milkweed.kernels.cpu.library import LIBRARY, ProgramRunner
from milkweed.kernels.cpu.program import Branch, Head, Performer, Program, Pyramid
from milkweed.kernels.cpu.quantise import calibrated, channels_of, quantised
from milkweed.kernels.cpu.reference import evaluate

from ..parts import images_of
from ..test_programs import BFLOAT16_ERROR, error, run
from ..vitae_programs import SHAPES, made

SOME_LEVELS = 0.002
"""What a few activations make that are rounded to the next level, since floats were added in another order."""


def in_8_bits(program: Program, images: np.ndarray, isa: InstructionSet) -> Program:
    return quantised(program, calibrated(program, [images]), isa.rounding)


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
