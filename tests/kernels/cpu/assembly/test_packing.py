"""Tests what is taken out of int8 weights where sums of four products have 16 bits."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from milkweed.kernels.cpu.assembly.assemble import assemble
from milkweed.kernels.cpu.assembly.packing import pack
from milkweed.kernels.cpu.factors import dense
from milkweed.kernels.cpu.instruction_sets import AS_USUAL, SETS, InstructionSet, Rounding
from milkweed.kernels.cpu.program import Factor, Quantiser
from milkweed.kernels.cpu.quantise import calibrated, quantised

from ..parts import images_of
from ..test_programs import error, run
from ..vit_programs import SHAPES, made

AVX2 = next(each for each in SETS if each.name == "avx2")
LIMIT = 0.02


@pytest.mark.parametrize(("outputs", "inputs"), [(16, 8), (48, 200), (80, 27), (33, 4)])
def test_panels_and_overflow_are_the_weights_and_sums_of_panels_fit_16_bits(outputs: int, inputs: int) -> None:
    rng = np.random.default_rng(outputs)
    factor = dense(np.zeros((outputs, inputs)), np.zeros(outputs))
    given = rng.integers(-63, 64, factor.weight.shape).astype(np.int8)
    given[0, :, ::5] = 63
    options = {"scale": np.ones((1, outputs)), "quantiser": Quantiser(np.ones(inputs), np.zeros(inputs))}
    factor = replace(factor, weight=given, **options)
    packed = pack(factor, np.arange(inputs), np.arange(outputs), np.arange(0), outputs, None, AVX2)
    _, panels, _, width, _ = packed.panels.shape
    assert packed.overflow is not None
    starts, overflow_steps = packed.overflow.table[: panels + 1], packed.overflow.table[panels + 1 :]
    whole = packed.panels[0].astype(int)
    assert starts[0] == 0
    assert starts[-1] == len(overflow_steps) == len(packed.overflow.weights)
    assert (starts[-1] > 0) == (inputs > 4)
    for panel, (start, end) in enumerate(itertools.pairwise(starts)):
        for step, overflow in zip(overflow_steps[start:end], packed.overflow.weights[start:end], strict=True):
            whole[panel, step] += overflow
    weights = whole.transpose(0, 2, 1, 3).reshape(panels * width, -1)
    assert np.array_equal(weights[:outputs, :inputs], given[0])
    assert not weights[outputs:].any()
    assert not weights[:, inputs:].any()
    fours = packed.panels.astype(int).reshape(-1, 2, width, 2, 2)  # two k-steps, outputs, pairs of numbers
    for largest in itertools.product((0, 255), repeat=4):
        sums = (fours * np.reshape(largest, (2, 1, 1, 2))).sum((1, 4))
        assert sums.min() >= -(2**15)
        assert sums.max() < 2**15


@pytest.mark.parametrize("rounding", [Rounding(63), AVX2.rounding, AS_USUAL])
@pytest.mark.parametrize("shape", ["tokens", "odd", "padded"])
def test_weights_of_one_sign_add_up_to_what_they_do_in_32_bits(
    shape: str, rounding: Rounding, isa: InstructionSet
) -> None:
    program = made(**SHAPES[shape])
    for each in program.operators:
        if isinstance(each, Factor):
            each.weight[:] = np.abs(each.weight)
    images = images_of(program, 2)
    program = quantised(program, calibrated(program, [images]), rounding)
    plain = InstructionSet("plain", 1, (2, 3, 4), Rounding(isa.rounding.levels))
    wanted = run(assemble(program, plain), images)
    assert error(run(assemble(program, isa), images), wanted) < LIMIT
    if isa.rounding.rms < np.inf and rounding != AVX2.rounding:
        without_overflow = replace(isa, rounding=Rounding(isa.rounding.levels))
        assert error(run(assemble(program, without_overflow), images), wanted) > 2 * LIMIT
