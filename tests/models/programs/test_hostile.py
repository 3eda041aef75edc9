"""Hostile bundles whose hashes are right: each is refused in one line, or computed inside of its memory."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milkweed.kernels.cpu.factors import convolution, dense
from milkweed.kernels.cpu.program import (
    Attention,
    BiasedAttention,
    Branch,
    Depthwise,
    Embed,
    Grid,
    Head,
    Merge,
    NormedEmbed,
    Operator,
    Performer,
    Pixels,
    Program,
    Pyramid,
    ResponseNorm,
    WindowedAttention,
)
from milkweed.kernels.cpu.row_operators import (
    AddTransposed,
    AddValues,
    Glu,
    InnerNorm,
    Join,
    Keep,
    NewStream,
    Norm,
    QkNorm,
    Renew,
    Rotary,
    StartTokens,
    Transpose,
    Unmerge,
)
from milkweed.models.errors import BundleError, ExportError
from milkweed.models.programs import compact
from milkweed.models.programs.file import stored
from milkweed.models.programs.session import kernels_refusal

from .program_bundles import CLASSES, answers, written

pytestmark = pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal()))

WIDTH = 16


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32) / 10


def norm(width: int = WIDTH) -> Norm:
    return Norm(np.ones(width, np.float32), np.zeros(width, np.float32), 1e-6)


def attention(heads: int = 1, keys: float = 0.0, *, first: bool = False) -> list[Operator]:
    qkv = normal(3 * 16 * heads, WIDTH)
    if keys:
        qkv[16 * heads : 32 * heads] = keys
    return [
        norm(),
        dense(qkv, None, name=f"qkv {heads} {keys} {first}"),
        Attention(heads, 16, first),
        dense(normal(WIDTH, 16 * heads), None, adds=True, name=f"proj {heads} {keys} {first}"),
    ]


def pyramid(side: int, kernel: int = 1, **options: int) -> list[Operator]:
    weight = normal(WIDTH, WIDTH, kernel, kernel)
    return [Grid(), Pyramid([convolution(weight, None, side, name=f"pyramid {side}", **options)])]


def program(operators: list[Operator], size: int = 8, start: int = 0) -> Program:
    tokens = (size // 4) ** 2
    embed = Embed(normal(WIDTH, 3, 4, 4), normal(WIDTH), normal(start or tokens, WIDTH), size)
    return Program(embed, operators, Head(norm(), dense(normal(CLASSES, WIDTH), None, name="head")))


GROWN = pyramid(2, padding=100)
FAR = [*attention(), *pyramid(2, padding=4096), *pyramid(8194, padding=4096)]
RESPONSE = normal(16), normal(16), 1e-6
PERFORMED = [norm(), dense(normal(48, 16), None, name="kqv"), Performer(normal(8, 16), 1e-8)]
PERFORMED.append(dense(normal(16, 16), None, adds=True, name="p"))


def factor(**changed: Any) -> Program:
    """An attention whose first factor is changed."""
    first, qkv, *others = attention()
    return program([first, replace(qkv, **changed), *others])  # type: ignore[type-var]


def branch(prefix: int = 0, **changed: int) -> Program:
    """A branch of one convolution that is changed."""
    whole = convolution(normal(WIDTH, WIDTH, 1, 1), None, 2, adds=True, name="branch")
    return program([Grid(), Branch([replace(whole, **changed)], prefix)])  # type: ignore[arg-type]


def biased(**changed: Any) -> Program:
    """An attention with biases, something of it changed."""
    values = {"table": np.zeros((1, 3)), "index": np.zeros((4, 4), np.int64), **changed}
    return program([*attention()[:2], BiasedAttention(1, 16, **values), *attention()[3:]])


def windows(**changed: Any) -> Program:
    """An attention in windows, something of it changed."""
    values = {"index": np.zeros((1, 2, 2), np.int64), "kinds": np.zeros(2, np.int64)}
    values |= {"windows": np.arange(4).reshape(2, 2), **changed}
    made = WindowedAttention(1, 16, table=np.zeros((1, 3)), **values)
    return program([*attention()[:2], made, *attention()[3:]])


def rotated(angles: np.ndarray) -> Program:
    return program([*attention()[:2], Rotary(1, angles, angles), *attention()[2:]])


def mixed(*operators: Operator, first: Sequence[Operator] = (Transpose(),)) -> Program:
    """What follows channels as rows."""
    return program([norm(), *first, *operators])


REFUSED: dict[str, tuple[Program, str]] = {
    "an input that is none": (factor(inputs=np.full((1, 16), 16)), "1 .Factor.: a place outside 0..15 or twice$"),
    "an output below 0": (factor(outputs=np.arange(-1, 47)[None]), "1 .Factor.: a place outside 0..47 or twice$"),
    "an input twice": (factor(inputs=np.zeros((1, 16), np.int64)), "1 .Factor.: a place outside 0..15 or twice$"),
    "a weight without places": (factor(weight=normal(1, 48, 15)), "1 .Factor.: its places$"),
    "more channels than outputs": (factor(width=10**6), "1 .Factor.: its bias$"),
    "a bias that is no number": (factor(bias=np.full(48, np.nan)), "1 .Factor.: its bias is no number"),
    "a sum of other channels": (factor(adds=True), "1 .Factor.: adds 48 channels to 16$"),
    "an attention of other channels": (factor(width=24, bias=np.zeros(24)), "2 .Attention.: of 24 channels$"),
    "a norm of other channels": (program([replace(norm(), weight=normal(17))]), "0 .Norm.: not 16 channels$"),
    "no convolution": (program([Grid(), Pyramid([])]), r"1 .Pyramid.: of sides set\(\)$"),
    "a performer of other channels": (
        program([*PERFORMED[:2], Performer(normal(8, 20), 1e-8)]),
        "2 .Performer.: of 48 channels$",
    ),
    "tokens that are no grid": (program([Grid(1)]), "0 .Grid.: 4 tokens are no grid$"),
    "a grid's huge prefix": (program([Grid(10**9)]), "0 .Grid.: a prefix of 1000000000$"),
    "a branch of other tokens": (branch(prefix=3), r"1 .Branch.: adds \(2, 16\) to 4 tokens$"),
    **{
        f"a convolution of another {name}": (branch(**{name: value}), "1 .Branch.: a convolution ")
        for name, value in {"side": 3, "channels": 4, "kernel": 200, "stride": 0, "padding": -9}.items()
    },
    "a merge behind a pyramid": (program([*attention(64), *GROWN, Merge(64, 16, 0, 1)]), "Merge.: keys are None"),
    "a merge behind a performer": (program([*attention(), *PERFORMED, Merge(1, 16, 0, 1)]), "Merge.: keys are None"),
    "two merges by the same keys": (program([*attention(), *[Merge(1, 16, 0, 1)] * 2], 16), "Merge.: keys are None"),
    "more tokens than there may be": (program(pyramid(2, padding=500)), "tokens, at most 65536 may be"),
    "memory of 109 GB": (program(FAR), "tokens, at most 65536 may be"),
    "memory of a wide grid": (
        Program(
            Pixels(4096), [Pyramid([convolution(normal(16, 3, 1, 1), None, 4096, 1, stride=16)])], program([]).head
        ),
        "bytes of memory a thread: at most",
    ),
    "a grid that nothing reads": (program([*attention(), Grid()]), "head: nothing reads what"),
    "two norms": (program([*attention(), norm(), norm()]), "Norm.: follows what Factor or Transpose may follow"),
    "an attention that nothing reads": (program(attention()[:3]), "head: nothing reads what"),
    "GELU and adds": (program([norm(), dense(normal(16, 16), None, gelu=True, adds=True)]), "GELU, and SiLU or what"),
    "SiLU of what adds": (program([norm(), dense(normal(16, 16), None, silu=True, adds=True)]), "SiLU of what adds"),
    "a response norm of other channels": (
        program([norm(), dense(normal(32, 16), None), ResponseNorm(*RESPONSE)]),
        "2 .ResponseNorm.: not 32 channels",
    ),
    "a response norm of merged tokens": (
        program([*attention(), Merge(1, 16, 0, 1), norm(), dense(normal(16, 16), None), ResponseNorm(*RESPONSE)]),
        "ResponseNorm.: of merged tokens",
    ),
    "a norm of other patches": (
        Program(NormedEmbed(normal(16, 3, 4, 4), normal(16), normal(4, 16), 8, norm(8)), [], program([]).head),
        "embed: its norm is not of 16 channels",
    ),
    "a norm of more channels": (program([Renew(norm(17))]), r"Renew.: of .17,. of 16 channels"),
    "an attention of something else than what is kept": (
        program([*attention()[:2], Keep(), *attention()]),
        "5 .Attention.: follows what Factor or InnerNorm or PostNorm or Glu may follow",
    ),
    "a merge before what is kept is read": (
        program([*attention(), *attention()[:2], Keep(), Merge(1, 16, 0, 1)]),
        "Merge.: follows what Norm or",
    ),
    "what is kept for nothing": (program([*attention()[:2], Keep()]), "head: nothing reads what"),
    "a renewal between norm and factor": (
        program([norm(), Renew(norm())]),
        "Renew.: follows what Factor or Transpose may follow",
    ),
    "merged tokens that there are not": (program([Unmerge()]), "0 .Unmerge.: no tokens are merged"),
    "tokens that are given back twice": (
        program([*attention(), Merge(1, 16, 0, 1), Unmerge(), Unmerge()], 16),
        "Unmerge.: no tokens are merged",
    ),
    "merged tokens behind the first alone": (
        program([*attention(), Merge(1, 16, 0, 1), *attention(first=True), Unmerge()], 16),
        "Unmerge.: no tokens are merged",
    ),
    "a negative prefix": (program([*attention(), Merge(1, 16, -3, 1)]), "Merge.: a prefix of -3"),
    "a huge count": (program([*attention(), Merge(1, 16, 0, 2**63)]), "9223372036854775808 of 4 tokens"),
    "keys that are no numbers": (program(attention(keys=np.nan)), "its weight is no number"),
    "an epsilon that is none": (program([replace(norm(), eps=float("inf")), *attention()[1:]]), "Infinity|eps is no"),
    "a protection that is an object": (program([*attention(), Merge(1, 16, 0, 1, [])]), "its protect is no number"),  # type: ignore[arg-type]
    "fewer inputs than channels": (program([norm(), dense(normal(16, 8), None, adds=True)]), "reads 8 of 16 channels"),
    "heads that are too wide": (program([norm(), dense(normal(48, 16), None), Attention(1, 8192)]), "at most 4096"),
    "biases of other tokens": (
        biased(index=np.zeros((5, 5), np.int64)),
        r"2 .BiasedAttention.: biases \(1, 3\) by \(5, 5",
    ),
    "a bias that the table lacks": (biased(index=np.full((4, 4), 3)), "2 .BiasedAttention.: biases"),
    "biases of other heads": (biased(table=np.zeros((2, 3))), "2 .BiasedAttention.: biases"),
    "biases that are no numbers": (biased(table=np.full((1, 3), np.nan)), "its table is no number"),
    "a token outside of windows": (windows(windows=np.array([[0, 1], [2, 2]])), "2 .WindowedAttention.: windows"),
    "a window that is of no kind": (windows(kinds=np.array([0, 1])), "2 .WindowedAttention.: windows"),
    "biases of another window": (windows(index=np.zeros((1, 3, 3), np.int64)), "2 .WindowedAttention.: biases"),
    "angles of other tokens": (rotated(np.zeros((5, 1, 8))), r"2 .Rotary.: angles \(5, 1, 8\) of 4 tokens"),
    "angles of other heads": (rotated(np.zeros((4, 3, 8))), "2 .Rotary.: angles"),
    "a gate of odd channels": (program([norm(), dense(normal(3, 16), None), Glu()]), "2 .Glu.: of 3 channels"),
    "an inner norm of more channels": (
        program([norm(), dense(normal(8, 16), None), InnerNorm(norm())]),
        "of .16,. of 8",
    ),
    "a norm of other queries": (
        program([norm(), dense(normal(48, 16), None), QkNorm(1, norm(8), norm(8)), Attention(1, 16)]),
        "2 .QkNorm.: of {.8,.} of 48 channels",
    ),
    "joined tokens that there are not": (program([Join(np.array([[0, 4]]))]), "0 .Join.: rows .1, 2. of 4 tokens"),
    "what is added before a stream starts": (
        program([Join(np.array([[0, 1]])), dense(normal(32, 32), None, adds=True)]),
        "1 .Factor.: adds 32 channels to 0",
    ),
    "tokens that are joined, and no stream": (
        program([Join(np.array([[0, 1]])), dense(normal(16, 32), None)]),
        "head: nothing reads",
    ),
    "a grid that nothing reads before tokens are joined": (
        program([Grid(), Join(np.array([[0, 1]])), dense(normal(16, 32), None), NewStream()]),
        "head: nothing reads",
    ),
    "a convolution of tokens that are no grid": (
        program([Depthwise(normal(16, 3, 3), normal(16)), InnerNorm(norm())], start=5),
        "0 .Depthwise.: weights",
    ),
    "a kernel with an even side": (program([Depthwise(normal(16, 2, 2), normal(16))]), "0 .Depthwise.: weights"),
    "values of no attention": (program([AddValues()]), "0 .AddValues.: values of None"),
    "a start of no tokens": (program([StartTokens(np.zeros((0, 16), np.float32))]), "0 .StartTokens.: values .0, 16."),
    "a start that is no number": (program([StartTokens(np.full((4, 16), np.nan))]), "its start is no number"),
    "channels as rows that nothing adds": (program([norm(), Transpose()]), "head: nothing reads"),
    "what is added of tokens": (mixed(AddTransposed(), first=[]), "1 .AddTransposed.: follows what"),
    "tokens added to channels": (mixed(dense(normal(16, 4), None, adds=True)), "2 .Factor.: adds rows of channels"),
    "an attention over channels": (mixed(dense(normal(48, 4), None), Attention(1, 16)), "3 .Attention.: follows what"),
    "as many channels as no tokens": (mixed(dense(normal(8, 4), None), AddTransposed()), "8 channels for 4 tokens"),
    "a flag that is a number": (program([norm(), dense(normal(16, 16), None, adds=1)]), "Factor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_hostile_program_is_refused_in_one_line(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in older files, where nothing follows from the weight.
    monkeypatch.setattr(compact, "_filters", lambda layer, narrowed: replace(layer, factor=narrowed(layer.factor)))
    made, said = REFUSED[case]
    bundle = written(tmp_path / "b", stored(made), made.embed.size)
    with pytest.raises((BundleError, ExportError), match=said) as refused:
        answers(bundle)
    assert "\n" not in str(refused.value)


HUGE = 3e38

COMPUTED: dict[str, Program] = {
    "keys that overflow": program([*attention(keys=HUGE), Merge(1, 16, 0, 19)], 40),
    "keys that overflow, and another merge's scratch": program(
        [
            *(*attention(keys=HUGE), Merge(1, 16, 0, 19), *pyramid(9, 2, padding=1)),
            *(*attention(2, HUGE), Merge(2, 16, 40, 1)),
        ],
        40,
    ),
    "a merge, and a pyramid that grows": program(
        [*attention(), Merge(1, 16, 0, 19), *pyramid(9, padding=100), *attention(2)], 40
    ),
}


@pytest.mark.parametrize("case", COMPUTED)
@pytest.mark.slow
def test_numbers_that_overflow_lead_nowhere(case: str, tmp_path: Path) -> None:
    """What they give is no matter; as many tokens as were asked for are left, and no other memory is touched."""
    made = COMPUTED[case]
    bundle = written(tmp_path / "b", stored(made), made.embed.size)
    assert answers(bundle).shape == (2, CLASSES)
