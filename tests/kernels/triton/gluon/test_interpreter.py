"""The interpreter of Gluon kernels: what it computes, what it finds wrong, and what it does not know."""

import pytest
import torch

from ...emulated.emulation import relative_error
from .interpreter import GluonKernels
from .machine import Mode, SynchronisationError
from .values import Descriptor, Pointer

MMA = "warpgroup_mma(tiles.index(0), tiles.index(1), sums, is_async=True)"
EMPTY = "mbarrier.wait(empty"
MODES = [Mode(late, seed) for late in (False, True) for seed in (None, 0, 1, 2)]

PRODUCT = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait
)
from triton.language.extra.cuda import gdc_wait, gdc_launch_dependents

@gluon.jit
def consume(y, tiles, full, empty):
    sums = warpgroup_mma_init(gl.zeros([64, 64], gl.float32, None))
    for i in range(2):
        mbarrier.wait(full, i)
        sums = warpgroup_mma(tiles.index(0), tiles.index(1).permute((1, 0)), sums, use_acc=i > 0, is_async=True)
        sums = warpgroup_mma_wait(0, deps=(sums,))
        mbarrier.arrive(empty)
    row, column = gl.arange(0, 64, None), gl.arange(0, 64, None)
    at = gl.expand_dims(row, 1) * 64 + gl.expand_dims(column, 0)
    gl.store(y + at, sums, mask=gl.expand_dims(row < 50, 1))

@gluon.jit
def load(x, w, tiles, full, empty):
    gdc_wait()
    gdc_launch_dependents()
    for i in range(2):
        mbarrier.wait(empty, i ^ 1)
        mbarrier.expect(full, 2 * 64 * 64 * 2)
        tma.async_load(x, [0, i * 64], full, tiles.index(0))
        tma.async_load(w, [0, i * 64], full, tiles.index(1))

@gluon.jit
def product(x, w, y):
    tiles = gl.allocate_shared_memory(x.dtype, [2, 64, 64], x.layout)
    barriers = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    full, empty = barriers.index(0), barriers.index(1)
    mbarrier.init(full, count=1)
    mbarrier.init(empty, count=1)
    gl.warp_specialize([(consume, (y, tiles, full, empty)), (load, (x, w, tiles, full, empty))], [1], [24])
"""


def run(source: str, mode: Mode = Mode()) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: B008
    """Run `product` on 50 rows; returns y (64, 64), of which the last 14 rows are NaN, and its truth."""
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, 50, 128, generator=generator).bfloat16()
    y = torch.full((64, 64), torch.nan)
    arguments = (Descriptor(x, dependent=True), Descriptor(w), Pointer(y))
    GluonKernels(source).launch("product", 1, arguments, mode, dependent=True)
    return y, x.double() @ w.double().T


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_product_is_right_in_every_mode_and_writes_nothing_else(mode: Mode) -> None:
    y, truth = run(PRODUCT, mode)
    assert relative_error(y[:50, :50], truth) < 1e-6
    assert (y[:50, 50:] == 0).all()
    assert y[50:].isnan().all()


def test_the_older_name_of_a_load_is_known_too() -> None:
    assert torch.equal(run(PRODUCT.replace("async_load", "async_copy_global_to_shared"))[0][:50], run(PRODUCT)[0][:50])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("mbarrier.init(full, count=1)", "pass", "used before it is initialised"),
        ("mbarrier.init(full, count=1)", "mbarrier.init(full, count=1)\n    mbarrier.init(full, count=1)", "twice"),
        ("        mbarrier.arrive(empty)\n", "", "deadlock: "),
        ("mbarrier.arrive(empty)", "mbarrier.arrive(empty, 2)", "more arrivals"),
        ("2 * 64 * 64 * 2", "64 * 64 * 2", "more bytes|deadlock"),
        ("2 * 64 * 64 * 2", "3 * 64 * 64 * 2", "deadlock"),
        ("    gdc_wait()\n", "", "before gdc_wait"),
        ("    gl.warp_specialize(", "    mbarrier.wait(full, 0)\n    gl.warp_specialize(", "the only partition waits"),
        ("        tma.async_load(w, [0, i * 64], full", "        tma.async_load(w, [0, i * 64], empty", "more bytes"),
        ("    gl.store(", f"    {MMA}\n    gl.store(", "under way"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_an_error(old: str, new: str, words: str) -> None:
    assert old in PRODUCT
    for mode in MODES:
        with pytest.raises(SynchronisationError, match=words):
            run(PRODUCT.replace(old, new, 1), mode)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        mbarrier.wait(full, i)\n", ""),
        ("        mbarrier.wait(empty, i ^ 1)\n", ""),
        ("        mbarrier.arrive(empty)\n", "        pass\n"),
        (f"range(2):\n        {EMPTY}, i", f"range(3):\n        {EMPTY}, i & 1"),
    ],
)
def test_a_missing_wait_or_load_too_many_shows_in_some_mode(old: str, new: str) -> None:
    def wrong(mode: Mode) -> bool:
        try:
            y, truth = run(PRODUCT.replace(old, new), mode)
        except SynchronisationError:
            return True
        return relative_error(y[:50, :50], truth) > 1e-3

    assert old in PRODUCT
    assert any(map(wrong, MODES))


STORE = "        tiles.index(0).store(gl.zeros([64, 64], gl.bfloat16, None))\n        fence_async_shared()\n"
STORED = PRODUCT.replace("        sums = warpgroup_mma(", f"{STORE}        sums = warpgroup_mma(")


def test_wgmma_sees_what_was_stored_behind_a_fence() -> None:
    assert (run(STORED)[0][:50] == 0).all()
    assert run(STORED.replace("        fence_async_shared()\n", ""))[0][:50].isnan().all()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gl.zeros(", "gl.full(", "does not know full"),
        ("    gl.store(", "    gl.sum(sums, 1)\n    gl.store(", "does not know sum"),
        ("from triton.language.extra.cuda import gdc_wait", "from triton.language.extra.hip import gdc_wait", "module"),
        ("fence_async_shared, mbarrier", "fence_async_shared, async_store, mbarrier", "async_store"),
        ("is_async=True", "is_async=True, precision='tf32'", "precision"),
        ("is_async=True", "is_async=False", "not asynchronous"),
        ("[64, 64], gl.float32, None", "[64, 64], gl.float32, None, True", "argument"),
        ("gl.expand_dims(row, 1) * 64", "gl.expand_dims(row, 1) // -gl.expand_dims(row, 1)", "operand"),
        ("(row < 50, 1)", "(row > 50, 1)", "not supported"),
        ("y + at", "y + at * 2", "outside of the 4096 elements"),
        ("gl.store(y + at, sums", "gl.store(y + at, sums.to(gl.bfloat16)", "bfloat16"),
        ("[2, 64, 64], x.layout", "[2, 64, 32], x.layout", "a tile"),
        ("[1], [24]", "[1, 1], [24]", "warps and registers"),
        ("gl.store(y + at, sums", "gl.store(y + at, gl.inline_asm_elementwise('ex2.approx.f32', '=f,f', [sums], dtype="
         "gl.float32, is_pure=True, pack=1)", "ex2"),
    ],
)  # fmt: skip
def test_what_it_does_not_know_is_refused(old: str, new: str, words: str) -> None:
    assert old in PRODUCT
    with pytest.raises((NotImplementedError, TypeError, ImportError, IndexError), match=words):
        run(PRODUCT.replace(old, new))


def test_quotients_of_negative_numbers_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="negative"):
        run(PRODUCT.replace("gl.expand_dims(row, 1) * 64", "(gl.expand_dims(row, 1) + -3) // 2 * 64"))
