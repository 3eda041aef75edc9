"""Fuzzes programs for the CPU kernels: mutated ones of files go through the reader, the assembler and the kernels.

What the reader takes has to be computed as the reference computes it; anything but a ValueError of one line is a
finding. Under AddressSanitizer an access outside of the kernels' memory ends the process: name a library that was built
so in LIBRARY, and preload the sanitizer (`tests/kernels/cpu/test_sanitizers.py` does both).
"""

import copy
import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from milkweed.kernels.cpu.assembly.assemble import assemble
from milkweed.kernels.cpu.factors import convolution
from milkweed.kernels.cpu.instruction_sets import supported_sets
from milkweed.kernels.cpu.library import LIBRARY as BUILT
from milkweed.kernels.cpu.library import ProgramRunner
from milkweed.kernels.cpu.program import Factor, Grid, Merge, Program, Pyramid
from milkweed.kernels.cpu.quantise import calibrated, channels_of
from milkweed.kernels.cpu.reference import evaluate
from milkweed.kernels.cpu.row_operators import Norm, Renew
from milkweed.models.programs import file as files
from milkweed.models.programs.compact import compact, rounded

from ..kernels.cpu import mixing_programs as mixing
from ..kernels.cpu import position_programs as positions
from ..kernels.cpu import vit_programs as vit
from ..kernels.cpu import vitae_programs as vitae
from ..kernels.cpu import window_programs as windows

LIBRARY = "MILKWEED_FUZZ_CPU_LIBRARY"
SETS = "MILKWEED_FUZZ_CPU_SETS"
"""Environment variables: the kernels' library, and the instruction sets in it, separated by commas."""

ERRORS = {False: 0.25, True: 0.6}
"""How far answers may be off, as a share of the largest, in bfloat16 and in int8; mistakes are more."""

HUGE, LARGE = 1e6, 100.0
"""Numbers beyond the first overflow in float32, so that answers are not compared; in 8 bits inputs of a layer beyond
the second leave nothing of the others, which may be what counts behind a norm."""

POSITIONS: list[dict[str, Any]] = [
    {"biased": True, "gated": True},
    {"post": True, "beside": True},
    {"rotary": 2, "norms": True, "inner": True, "padding": 3},
    {"biased": True, "rotary": 1, "norms": True, "rms": True, "gated": True, "inner": True},
]

WINDOWS: list[dict[str, Any]] = [
    *({"kinds": 2}, {"kernel": 3}, {"values": 2}, {"merged": 3}),
    {"values": 1, "size": 36, "window": 3},
]

MIXING: list[dict[str, Any]] = [{}, {"gated": True, "over_tokens": 32}, {"prefix": 1}]

MAX_ARENA, MAX_SIDE = 1 << 26, 64

INTS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 32, 33, 48, 64, 100, 128, 255, 512, 4096, -1, 2**31 - 1, 2**31, 2**63]

NUMBERS = {"float32": [3e38, 1e30, -1.0, 0.0, np.nan], "uint16": [0x7F7F, 0x7F80, 0xFF7F], "int8": [1, -128, 127]}

Arrays = dict[str, np.ndarray]


@cache
def bases() -> tuple[tuple[dict[str, Any], Arrays], ...]:
    """Programs of both kinds as files hold them: their structure and arrays."""
    small = {"size": 32, "patch": 8, "width": 32, "head_dim": 16, "hidden": 48}
    shapes = [
        {},
        {"merged": 2},
        {"merged": 2, "mean": True},
        {"nblocks": 3, "everywhere": True},
        {"nblocks": 5},
        {"normed": True},
    ]
    programs = [vit.made(**{**small, **shape}) for shape in shapes]
    first = programs[0].operators[0]
    assert isinstance(first, Norm)
    silu = [
        replace(operator, gelu=False, silu=True) if isinstance(operator, Factor) and operator.gelu else operator
        for operator in programs[0].operators
    ]
    programs.append(replace(programs[0], operators=[Renew(first), *silu, Renew(first)]))
    small = {"size": 24, "patch": 8, "width": 32, "hidden": 48}
    programs += [positions.made(**{**small, **shape}) for shape in POSITIONS]
    small = {"size": 16, "window": 2, "hidden": 32}
    programs += [windows.made(**{**small, **shape}) for shape in WINDOWS]
    programs += [mixing.made(**{"size": 12, "hidden": 32, **shape}) for shape in MIXING]
    small = {"size": 12, "width": 32, "embed": 16, "hidden": 32}
    programs += [vitae.made(**{**small, **shape}) for shape in ({}, {"groups": 4}, {"prefix": 1, "patch": 3})]
    return tuple(_stored(each, int8=int8) for each in programs for int8 in (False, True))


def _stored(program: Program, *, int8: bool) -> tuple[dict[str, Any], Arrays]:
    arrays: Arrays = {}
    activations = dict.fromkeys(channels_of(program), np.empty(0, np.float32)) if int8 else None
    return files._plain(compact(program, activations), arrays, {}), arrays


def case(rng: random.Random) -> None:
    """One program, mutated up to three times."""
    structure, arrays = copy.deepcopy(rng.choice(bases()))
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        rng.choice(MUTATIONS)(rng, structure, arrays)
    compute(structure, arrays, rng.randrange(1 << 16))


def compute(structure: dict[str, Any], arrays: Arrays, seed: int = 0) -> str:
    """Read, assemble and run a program of a file; return how far it came, or the line that refuses it."""
    tame = all(_largest(array) < HUGE for array in arrays.values())
    stored = {**arrays, files.STRUCTURE: np.frombuffer(json.dumps(structure).encode(), np.uint8)}
    with np.errstate(all="ignore"):
        try:
            return _computed(stored, seed, tame)
        except ValueError as error:
            said = str(error)
    assert "\n" not in said, f"more than a line: {said}"
    return said


def _largest(array: np.ndarray) -> float:
    """The largest magnitude in an array, whose uint16 are the bits of bfloat16."""
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return float(np.abs(array.astype(np.float64)).max(initial=0)) if array.dtype.kind == "f" else 0.0


def _computed(arrays: Arrays, seed: int, tame: bool) -> str:
    program, layers = files._program(arrays)
    int8 = bool(layers)
    if program.embed.size > MAX_SIDE:
        return "large"
    generator = np.random.default_rng(seed)
    images = generator.standard_normal((2, 3, program.embed.size, program.embed.size)).astype(np.float32)
    if int8:
        maxima = {name: np.nan_to_num(most, posinf=1e30) for name, most in calibrated(program, [images]).items()}
        tame = tame and all(most.max() < LARGE for most in maxima.values())
        if seed % 3 == 1:  # some layers stay in bfloat16
            maxima = {name: most for i, (name, most) in enumerate(maxima.items()) if i % 2}
        program = rounded(program, {name: most.astype(np.float32) for name, most in maxima.items()})
    names = os.environ.get(SETS, "").split(",")
    sets = [each for each in supported_sets() if names == [""] or each.name in names]
    assembled = assemble(program, sets[seed % len(sets)])
    if assembled.arena_bytes > MAX_ARENA:
        return "large"
    found = ProgramRunner(assembled, Path(os.environ.get(LIBRARY, BUILT)))(images)
    wanted = evaluate(program, images.astype(np.float64))
    tame = tame and np.isfinite(evaluate(program, images)).all()  # exponentials overflow in float32
    if tame and np.isfinite(wanted).all() and np.abs(wanted).max() < HUGE:
        off, limit = np.abs(found - wanted).max(), ERRORS[int8] * np.abs(wanted).max() + 1e-3
        said = f"off by {off:.3g} of {np.abs(wanted).max():.3g} by {assembled.isa.name}"
        # In 8 bits which tokens are most alike changes with the rounding itself.
        merges = int8 and any(isinstance(operator, Merge) for operator in program.operators)
        assert off <= limit or merges or _chooses(program, images, wanted, limit), said
    return "ran"


def _chooses(program: Program, images: np.ndarray, wanted: np.ndarray, limit: float) -> bool:
    """Whether a little noise changes the definition's answers as much, since other tokens are merged then."""
    generator = np.random.default_rng(0)
    noisy = [evaluate(program, images * (1 + generator.standard_normal(images.shape) / 128)) for _ in range(3)]
    return max(float(np.abs(each - wanted).max()) for each in noisy) > limit / 4


def _operators(rng: random.Random, structure: dict[str, Any], arrays: Arrays) -> None:
    """Operators left out, twice or exchanged, or a run of another program's."""
    operators = structure["operators"]
    i, j = sorted((rng.randrange(len(operators) + 1), rng.randrange(len(operators) + 1)))
    kind = rng.randrange(4)
    if kind == 0:
        del operators[i : min(j, i + 2)]
    elif kind == 1:
        operators[j:j] = copy.deepcopy(operators[i : i + rng.randint(1, 4)])
    elif kind == 2 and j < len(operators):
        operators[i], operators[j] = operators[j], operators[i]
    else:
        other, others = rng.choice(bases())
        first = rng.randrange(len(other["operators"]))
        _insert(rng, structure, arrays, other["operators"][first : first + rng.randint(1, 5)], others)


def _growth(rng: random.Random, structure: dict[str, Any], arrays: Arrays) -> None:
    """Operators that fit wherever nothing waits to be read: a grid, tokens merged, or the stream at another size."""
    generator, name = np.random.default_rng(rng.randrange(1 << 16)), f"new {len(arrays)}"
    width, side = rng.choice([16, 32]), rng.choice([2, 3, 4, 6])
    weight = generator.standard_normal((width, width, 1, 1)).astype(np.float32) / 4
    padding, stride = rng.choice([0, 1, 5, 40, 400]), rng.choice([1, 1, 2])
    grown = Pyramid([convolution(weight, None, side, padding=padding, stride=stride, name=name)])
    merge = {"kind": "Merge", "heads": 2, "head_dim": 16, "prefix": rng.choice([0, 1]), "count": rng.randint(1, 5)}
    program = files.Program(files.Pixels(1), [Grid(rng.choice([0, 1])), grown], vit.made().head)
    made, others = _stored(program, int8=False)
    _insert(rng, structure, arrays, rng.choice([made["operators"], [{**merge, "protect": 0.5}]]), others)


def _insert(rng: random.Random, structure: dict[str, Any], arrays: Arrays, run: Any, others: Arrays) -> None:
    operators, before = structure["operators"], f"{len(arrays)} "
    arrays.update({before + name: array for name, array in others.items()})
    at = rng.randrange(len(operators) + 1)
    operators[at:at] = _renamed(run, before)


def _renamed(part: Any, before: str) -> Any:
    if isinstance(part, dict) and set(part) == {"array"}:
        return {"array": before + part["array"]}
    if isinstance(part, dict):
        return {name: _renamed(value, before) for name, value in part.items()}
    return [_renamed(each, before) for each in part] if isinstance(part, list) else copy.deepcopy(part)


def _value(rng: random.Random, structure: dict[str, Any], arrays: Arrays) -> None:
    """One field of one part: another number, type, or array."""
    part = rng.choice([part for part in _parts(structure) if len(part) > 1])
    name = rng.choice([each for each in part if each != "kind"])
    value = part[name]
    if isinstance(value, bool):
        part[name] = rng.choice([not value, 1, None])
    elif isinstance(value, int):
        part[name] = rng.choice([rng.choice(INTS), value + rng.choice([-2, -1, 1, 2]), 2 * value, value // 2])
    elif isinstance(value, float):
        part[name] = rng.choice([0.0, 1e30, -1.0, 1e-30, 1, 10**400, "0.1", None])
    elif isinstance(value, list) and value:
        part[name] = rng.choice([value[:-1], [*value, copy.deepcopy(value[-1])], value[::-1]])
    else:
        part[name] = rng.choice([None, "", 3, [], {"array": rng.choice(list(arrays))}])


def _parts(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [part for each in value for part in _parts(each)]
    if not isinstance(value, dict) or "kind" not in value:
        return []
    return [value, *(part for each in value.values() for part in _parts(each))]


def _array(rng: random.Random, structure: dict[str, Any], arrays: Arrays) -> None:
    """One array: another number, shape, order or type."""
    name = rng.choice(list(arrays))
    array, kind = arrays[name].copy(), rng.randrange(6)
    axis = rng.randrange(max(array.ndim, 1))
    if kind == 0 and array.size:
        array.flat[rng.randrange(array.size)] = rng.choice(NUMBERS.get(array.dtype.name, [0, 1, -1, array.size, 127]))
    elif kind == 1 and array.ndim:
        array = np.take(array, range(rng.randint(0, array.shape[axis])), axis)
    elif kind == 2 and array.ndim:
        array = np.concatenate([array, array], axis)
    elif kind == 3 and array.dtype == np.int32:
        array = np.random.default_rng(rng.randrange(1 << 16)).permutation(array.ravel()).reshape(array.shape)
    elif kind == 4:
        array = array.astype(rng.choice([np.int8, np.int16, np.int32, np.float32, np.uint16, np.float64, np.int64]))
    else:
        array = array.reshape(rng.choice([(-1,), (1, *array.shape), array.shape[::-1]]))
    arrays[name] = np.ascontiguousarray(array)


MUTATIONS = (_operators, _growth, _value, _array)

TARGETS: dict[str, Callable[[random.Random], None]] = {"programs": case}
