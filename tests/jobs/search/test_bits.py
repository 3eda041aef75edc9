"""The quantisation that a search goes on with."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from milkweed.jobs.search import search
from milkweed.jobs.search.front import Measured, Target
from milkweed.jobs.search.levers import Bits, Levers
from milkweed.models.progress import SILENT
from milkweed.models.report.frontier import Interval, Quality

OURS, WHOLE, EVEN, SMOOTH = Bits(per_channel=True), Bits(), Bits(symmetric=True), Bits(0.5)
Case = dict[Bits | None, tuple[float, float]]


def measured(ms: float, kl: float) -> Measured:
    one = Interval(kl, kl, kl)
    return Measured("", Quality(250, one, one, one, None), {1: ms, 8: ms / 2}, 100, "")


@pytest.mark.parametrize(
    ("found", "chosen", "tried"),
    [
        ({None: (10, 0), WHOLE: (7, 0.005), EVEN: (8, 0.004)}, WHOLE, [WHOLE, EVEN]),
        ({None: (10, 0), WHOLE: (11, 0.005), EVEN: (8, 0.004)}, EVEN, [WHOLE, EVEN]),
        ({None: (6, 0), WHOLE: (7, 0.005), EVEN: (6.1, 0.004)}, None, [WHOLE, EVEN]),
        ({None: (10, 0), WHOLE: (7, 0.5), EVEN: (8, 0.4), SMOOTH: (9, 0.01)}, SMOOTH, [WHOLE, EVEN, SMOOTH]),
        ({None: (10, 0), WHOLE: (7, 0.5), EVEN: (7, 0.4), SMOOTH: (7, 0.6)}, EVEN, [WHOLE, EVEN, SMOOTH]),
        ({None: (10, 0), OURS: (3, 0.003), WHOLE: (7, 0.005), EVEN: (8, 0.004)}, OURS, [OURS, WHOLE, EVEN]),
        ({None: (10, 0), OURS: (3, 0.1), WHOLE: (7, 0.005), EVEN: (8, 0.004)}, WHOLE, [OURS, WHOLE, EVEN]),
        ({None: (10, 0)}, None, [WHOLE, EVEN, SMOOTH]),  # nothing could be quantised
    ],
)
def test_the_fastest_that_loses_little_is_taken(found: Case, chosen: Bits | None, tried: Sequence[Bits]) -> None:
    asked, taken = bits_of(found, Target(speedup=2))
    assert (taken, asked) == (chosen, tried)


def test_for_bytes_float_is_no_choice_however_fast_and_neither_are_our_kernels() -> None:
    found: Case = {None: (1, 0), OURS: (1, 0.001), WHOLE: (7, 0.005)}
    assert bits_of(found, Target(bytes=100)) == ([WHOLE, EVEN], WHOLE)


def bits_of(found: Case, target: Target) -> tuple[list[Bits], Bits | None]:
    """The quantisations that were measured, and the one that was taken."""
    asked: list[Any] = []
    stub: Any = SimpleNamespace(
        job=SimpleNamespace(target=target),
        runs=SimpleNamespace(dense=measured(20, 0), ours=OURS in found),
        progress=SILENT,
        _measure=lambda levers: asked.append(levers.bits),
        _found=lambda levers: [measured(*found[levers.bits])] if levers.bits in found else [],
    )
    kl = search.Search._bits(stub, Levers())
    return asked, search.Search._best_bits(stub, Levers(), kl)
