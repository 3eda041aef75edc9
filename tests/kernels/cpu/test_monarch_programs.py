"""Monarch layers of every shape that the format allows, by every instruction set, held against their dense matrices.

Widths that nblocks does not divide, fewer channels than blocks, rectangular factors; what fills up is random, not zero.
"""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from milkweed.kernels.cpu.assembly.assemble import assemble
from milkweed.kernels.cpu.factors import dense, monarch
from milkweed.kernels.cpu.instruction_sets import InstructionSet
from milkweed.kernels.cpu.program import Attention, Embed, Factor, Head, Operator, Program
from milkweed.kernels.cpu.quantise import LEVELS, calibrated, quantised
from milkweed.kernels.cpu.reference import evaluate
from milkweed.kernels.cpu.row_operators import Norm
from milkweed.kernels.reference import monarch_to_dense

from .parts import images_of
from .test_programs import BFLOAT16_ERROR, INT8_ERROR, error, run

WIDTH, HEADS, HIDDEN, CLASSES = 48, 3, 72, 7
LAYERS = ("qkv", "proj", "fc1", "fc2")

BLOCKS = [(n, n) for n in (1, 2, 3, 5, 7, 10, 16, 33, 50)] + [(2, 3), (6, 4), (5, 7)]
"""Blocks of the first and of the second factor."""


def made(blocks: tuple[int, int], structured: tuple[str, ...], bias: bool = True) -> tuple[Program, Program]:
    """A program of two blocks with Monarch layers, and the one with their dense matrices."""
    rng, number = np.random.default_rng(0), itertools.count()
    K, J = blocks

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) / np.sqrt(shape[-1])

    def layer(inputs: int, outputs: int, kind: str, gain: float, **options: Any) -> tuple[list[Factor], list[Factor]]:
        shift, options["name"] = normal(1, outputs)[0] if bias else None, f"layer {next(number)}"
        if kind not in structured:
            return ([dense(normal(outputs, inputs) * gain, shift, **options)],) * 2
        p, s = -(-inputs // K), -(-outputs // J)
        q = -(-min(K * p, J * s) // (K * J)) * J
        w1, w2 = normal(K, q, p) * gain, normal(J, s, K * q // J)
        whole = monarch_to_dense(torch.from_numpy(w1), torch.from_numpy(w2), outputs, inputs).numpy()
        return monarch(w1, w2, shift, outputs, **options), [dense(whole, shift, **options)]

    def norm() -> Norm:
        return Norm(1 + 0.3 * rng.standard_normal(WIDTH), normal(1, WIDTH)[0], 1e-6)

    operators: tuple[list[Operator], list[Operator]] = [], []
    for _ in range(2):
        norms = norm(), norm()
        qkv, proj = layer(WIDTH, 3 * WIDTH, "qkv", 0.4), layer(WIDTH, WIDTH, "proj", 1.2, adds=True)
        fc1, fc2 = layer(WIDTH, HIDDEN, "fc1", 1.2, gelu=True), layer(HIDDEN, WIDTH, "fc2", 1.2, adds=True)
        for form, found in enumerate(operators):
            found += [norms[0], *qkv[form], Attention(HEADS, WIDTH // HEADS), *proj[form]]
            found += [norms[1], *fc1[form], *fc2[form]]
    embed = Embed(normal(WIDTH, 3, 8, 8) / 8, normal(1, WIDTH)[0], rng.standard_normal((10, WIDTH)), 24)
    head = Head(norm(), dense(normal(CLASSES, WIDTH), normal(1, CLASSES)[0], name="head"))
    return Program(embed, operators[0], head), Program(embed, operators[1], head)


@cache
def case(blocks: tuple[int, int]) -> tuple[Program, np.ndarray, np.ndarray, Any]:
    """A program whose layers are all Monarch, images, its dense matrices' answers and its activations."""
    program, whole = made(blocks, LAYERS, bias=sum(blocks) % 3 > 0)
    images = images_of(program, 3)
    return program, images, evaluate(whole, images.astype(np.float64)), calibrated(program, [images])


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_a_program_is_what_its_dense_matrices_are(blocks: tuple[int, int]) -> None:
    program, images, wanted, _ = case(blocks)
    assert error(evaluate(program, images.astype(np.float64)), wanted) < 1e-12


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.slow_beyond(12)
def test_kernels_compute_the_dense_matrices(blocks: tuple[int, int], isa: InstructionSet) -> None:
    program, images, wanted, activations = case(blocks)
    assert error(run(assemble(program, isa), images), wanted) < 2 * BFLOAT16_ERROR
    limit = INT8_ERROR * (2 if isa.rounding.levels == LEVELS else 3)  # weights of 7 bits
    assert error(run(assemble(quantised(program, activations, isa.rounding), isa), images), wanted) < limit
