"""The inner half of a Monarch MLP: its Gluon source interpreted, with bugs planted too.

`pytest tests/kernels/triton/gluon -m slow -s` prints errors and seconds by shape, and what shows each bug.
"""

import time
from dataclasses import replace

import pytest
import torch

from milkweed.kernels.triton.inner import ROWS

from ...emulated.emulation import TOLERANCE
from .inner_cases import SHAPES, SOURCE, Case
from .interpreter import GluonKernels
from .machine import Mode, SynchronisationError

SEEDS = (0, 1, 2)
MODES = [Mode(late, seed) for late in (True, False) for seed in (*SEEDS, None)]
FOUR_MODES = [mode for mode in MODES if mode.seed in (None, 0)]
LIMIT = TOLERANCE[torch.bfloat16]

T_WAIT = "mbarrier.wait(barriers[0].index(slot), (l // RINGS[1]) & 1)"
W_WAIT = "mbarrier.wait(barriers[2].index(stage), (chunk // RINGS[2]) & 1)"
T_EMPTY = "mbarrier.wait(barriers[1].index(slot), ((l // RINGS[1]) & 1) ^ 1)"
W_EMPTY = "mbarrier.wait(barriers[3].index(stage), ((chunk // RINGS[2]) & 1) ^ 1)"
PRODUCTS = "done = warpgroup_mma_wait(0, deps=(h,) + sums)"
W_RELEASE = "if chunk > 0:\n                mbarrier.arrive(barriers[3].index((chunk - 1) % RINGS[2]))"
T_RELEASE = "mbarrier.arrive(barriers[1].index(slot))"
NO_RELEASE = (f"    {T_RELEASE}\n    _store", "    _store")
T_BARRIERS, W_BARRIERS = ("_barriers(RINGS[1], GROUPS)", "_barriers(RINGS[2], GROUPS)")

PLANTED = {
    "waits: none for t": (T_WAIT, "pass"),
    "waits: for the other phase of t": (T_WAIT, T_WAIT.replace("& 1", "& 1 ^ 1")),
    "waits: none for weights": (W_WAIT, "pass"),
    "waits: for the other phase of weights": (W_WAIT, W_WAIT.replace("& 1", "& 1 ^ 1")),
    "waits: none for a free stage of t": (T_EMPTY, "pass"),
    "waits: for the other phase of a free stage of t": (T_EMPTY, T_EMPTY.replace(" ^ 1", "")),
    "waits: none for a free stage of weights": (W_EMPTY, "pass"),
    "waits: for the other phase of a free stage of weights": (W_EMPTY, W_EMPTY.replace(" ^ 1", "")),
    "waits: none for products": (PRODUCTS, "done = (h,) + sums"),
    "waits: for the products with W3 alone": (
        PRODUCTS,
        "done = warpgroup_mma_wait(0 if chunk == 0 else 3, deps=(h,) + sums)",
    ),
    "waits: none at the end": ("_store_sums(warpgroup_mma_wait(0, deps=sums), u", "_store_sums(sums, u"),
    "waits: none for the launch before": ("gdc_wait()\n        gdc", "gdc"),
    "waits: the launch behind is let go before": (
        "gdc_wait()\n        gdc_launch_dependents()",
        "gdc_launch_dependents()\n        gdc_wait()",
    ),
    "waits: t is loaded before the launch before is over": (
        "    if PDL:\n        gdc_wait()\n        gdc_launch_dependents()\n    for l in range(NBLOCKS):",
        "    async_load(t, [first, 0], barriers[0].index(0), shared[0].index(0))\n    for l in range(NBLOCKS):",
    ),
    "fences: none between hidden features and wgmma": ("            fence_async_shared()\n", ""),
    "fences: before hidden features are stored": (
        "            p.store(_gelu(h).to(p.dtype))\n            fence_async_shared()\n",
        "            fence_async_shared()\n            p.store(_gelu(h).to(p.dtype))\n",
    ),
    "counts: bytes of t": ("GROUPS * TILES * SIDE * SIDE * 2", "TILES * SIDE * SIDE * 2"),
    "counts: bytes of weights": ("(TILES * SIDE + Q) * SIDE * 2", "(TILES * SIDE + Q) * SIDE"),
    "counts: too many bytes of weights": ("(TILES * SIDE + Q) * SIDE * 2", "(TILES * SIDE + Q) * SIDE * 4"),
    "counts: one arrival frees t": (T_BARRIERS, "_barriers(RINGS[1], 1)"),
    "counts: one arrival frees weights": (W_BARRIERS, "_barriers(RINGS[2], 1)"),
    "counts: one arrival more frees weights": (W_BARRIERS, "_barriers(RINGS[2], GROUPS + 1)"),
    "releases: none of t": (T_RELEASE, "pass"),
    "releases: t before it is read": (f"{T_WAIT}\n", f"{T_WAIT}\n        {T_RELEASE}\n", *NO_RELEASE),
    "releases: t when a part of it is read": (
        f"{W_RELEASE}\n",
        f"{W_RELEASE}\n            if s == CHUNKS // 2:\n                {T_RELEASE}\n",
        *NO_RELEASE,
    ),
    "releases: none of weights": (W_RELEASE, "pass"),
    "releases: the wrong stage of weights": ("(chunk - 1) % RINGS[2]", "chunk % RINGS[2]"),
    "releases: weights before their products are done": (
        f"{PRODUCTS}\n            h, sums = done[0], done[1:]\n            {W_RELEASE}",
        f"{W_RELEASE}\n            {PRODUCTS}\n            h, sums = done[0], done[1:]",
    ),
    "numbers: a column": ("column = v // SEGMENT * Q + k * SEGMENT", "column = v // SEGMENT * Q + SEGMENT"),
    "numbers: rows behind the last": (", mask=gl.expand_dims(row < rows, 1)", ""),
    "numbers: the bias of another block": (
        "(l * NBLOCKS + k) * SHAPE[1] + s * SIDE + column",
        "l * SHAPE[1] + s * SIDE + column",
    ),
    "numbers: sums of the first chunk only": ("use_acc=i > 0", "use_acc=False"),
}


@pytest.fixture(scope="module")
def kernels() -> GluonKernels:
    return GluonKernels(SOURCE)


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_the_same_in_four_modes(kernels: GluonKernels, name: str) -> None:
    case = replace(SHAPES[name], rows=17)
    runs = [case.run(kernels, mode) for mode in FOUR_MODES]
    assert max(error for _, error in runs) <= LIMIT
    assert all(torch.equal(u, runs[0][0]) for u, _ in runs)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 17, 197, 1577])
@pytest.mark.parametrize("name", SHAPES)
def test_ragged_rows(kernels: GluonKernels, name: str, rows: int) -> None:
    case = replace(SHAPES[name], rows=rows)
    begun = time.perf_counter()
    runs = [case.run(kernels, mode) for mode in MODES]
    seconds = time.perf_counter() - begun
    print(f"\n{name}, {rows} rows: error {max(error for _, error in runs):.2e}, {len(runs)} runs, {seconds:.1f} s")
    assert max(error for _, error in runs) <= LIMIT
    assert all(torch.equal(u, runs[0][0]) for u, _ in runs)


def shown(case: Case, kernels: GluonKernels, mode: Mode) -> str:
    """What shows that the kernel is wrong in a mode; nothing if it is right there."""
    try:
        error = case.run(kernels, mode)[1]
    except (SynchronisationError, IndexError, NotImplementedError, AttributeError) as failed:
        return type(failed).__name__
    return "" if error <= LIMIT else f"error {error:.1g}"


def with_bug(bug: str) -> GluonKernels:
    text = SOURCE.read_text()
    changes = PLANTED[bug]
    for i in reversed(range(0, len(changes), 2)):
        old, new = changes[i : i + 2]
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    return GluonKernels(text)


@pytest.mark.slow_beyond(8)
@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_caught(bug: str) -> None:
    planted = with_bug(bug)
    # Tiles of 192 rows have one stage of t: with two of them, what frees weights frees t too.
    assert any(shown(case, planted, mode) for case in (Case(17, tile=1), Case(17)) for mode in MODES)


@pytest.mark.slow
def test_what_shows_each_planted_bug() -> None:
    for bug in PLANTED:
        planted = with_bug(bug)
        for case in (Case(17), Case(17, tile=1)):
            by_mode = {f"{mode.late:d} {mode.seed}": shown(case, planted, mode) for mode in MODES}
            print(f"\n{bug}, {ROWS[case.tile]} rows: {sum(map(bool, by_mode.values()))} of {len(MODES)}; {by_mode}")
