"""The CUDA kernel of a Monarch layer, run by the emulator on tensors of our packing, against float64."""

import ctypes
import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from milkweed.kernels.batched import monarch_batched
from milkweed.kernels.blocked import Activation, BlockedMonarch, activated, block_monarch, blocked_reference
from milkweed.kernels.reference import monarch_reference

from .emulation import (
    DTYPES,
    FULL,
    MODES,
    TOLERANCE,
    Build,
    guarded,
    guards_untouched,
    in_full_runs,
    launch,
    relative_error,
)

TILES = range(4)
HOPPER, SMALL = 227 * 1024, 99 * 1024
"""Bytes of shared memory that a block may have: on sm_90, and on sm_86, 89 and 120."""


@dataclass(frozen=True)
class Case:
    """A layer and its inputs, rounded to the dtype, and the truth in float64."""

    x: Tensor
    layer: BlockedMonarch
    act: Activation
    residual: Tensor | None
    truth: Tensor
    torch_path: Tensor  # the same by PyTorch's batched products in the same dtype


def make_case(
    nb: int,
    in_features: int,
    out_features: int,
    rows: int,
    *,
    rank: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    act: Activation = Activation.NONE,
    bias: bool = True,
    residual: bool = False,
) -> Case:
    generator = torch.Generator().manual_seed(in_features + rows)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    p, s = in_features // nb, out_features // nb
    q = rank or min(p, s)
    w1, w2 = (normal(nb, q, p) / p**0.5).to(dtype), (normal(nb, s, q) / q**0.5).to(dtype)
    x = normal(rows, in_features).to(dtype)
    b = normal(out_features) if bias else None
    extra = normal(rows, out_features).to(dtype) if residual else None
    truth = monarch_reference(x.double(), w1.double(), w2.double()) + (0 if b is None else b.double())
    torch_path = monarch_batched(x, w1, w2) + (0 if b is None else b.to(dtype))
    truth, torch_path = activated(truth, act), activated(torch_path, act)
    if extra is not None:
        truth, torch_path = truth + extra.double(), torch_path + extra
    layer = block_monarch(w1, w2, b, in_features, out_features, dtype)
    return Case(x, layer, act, extra, truth, torch_path)


class Kernel:
    """The emulated library behind tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def launch(
        self,
        case: Case,
        tile: int,
        *,
        mode: int = 0,
        seed: int = 1,
        multiprocessors: int = 1,
        shared_limit: int = HOPPER,
        sizes: tuple[int, ...] | None = None,
    ) -> tuple[str | None, Tensor]:
        rows, layer = len(case.x), case.layer
        y = guarded((rows, layer.out_features), case.x.dtype)
        sizes = sizes or (rows, layer.K, layer.p, layer.c, layer.out_features // layer.K)
        tensors = (case.x, layer.w1, layer.w2, layer.natural_bias, case.residual, y)
        error = launch(
            *(self.library.mw_monarch_linear, mode, seed, DTYPES.index(case.x.dtype), tile, *tensors),
            *((ctypes.c_int * 5)(*sizes), int(case.act), multiprocessors, shared_limit),
        )
        return error, y

    def __call__(self, case: Case, tile: int, **options: int) -> Tensor:
        error, y = self.launch(case, tile, **options)
        assert error is None, error
        assert guards_untouched(y), "what is beside the output was written"
        return y


@pytest.fixture(scope="module")
def kernel(emulated: Build) -> Kernel:
    return Kernel(emulated("monarch_linear"))


def check(kernel: Kernel, case: Case, tile: int, **options: int) -> Tensor:
    """Runs the case; its error must be within the tolerance and close to that of PyTorch's own path."""
    y = kernel(case, tile, **options)
    error = relative_error(y, case.truth)
    assert error <= TOLERANCE[case.x.dtype]
    assert error <= 1.25 * relative_error(case.torch_path, case.truth)
    return y


def layer(nb: int, in_features: int, out_features: int, rows: int, **options: Any) -> dict[str, Any]:
    """Arguments of `make_case`."""
    return {"nb": nb, "in_features": in_features, "out_features": out_features, "rows": rows, **options}


SMALL_WIDTHS = [(4, 192, 192), (2, 64, 96), (8, 128, 128), (4, 96, 320), (4, 320, 64)]
RANKS = [(4, 18), (4, 5), (2, 31), (8, 9), (8, 70), (4, 90)]
LAYERS = {
    **{f"{w}": layer(*w, 37, act=Activation.GELU, residual=True) for w in SMALL_WIDTHS},
    **{f"{rows} rows": layer(4, 64, 128, rows, residual=True) for rows in (1, 15, 16, 17, 31, 33, 129, 197)},
    **{f"rank {rank}, nb {nb}": layer(nb, 24 * nb, 20 * nb, 17, rank=rank) for nb, rank in RANKS},
    **{
        f"{act!r}, {dtype}, nb {nb}": layer(
            nb, 16 * nb, 24 * nb, 18, dtype=dtype, act=act, residual=act == Activation.NONE
        )
        for nb, dtype, act in itertools.product((2, 4, 8), DTYPES, Activation)
    },
    "no bias": layer(4, 64, 96, 18, bias=False),
    "no bias, residual": layer(4, 64, 96, 18, bias=False, residual=True),
}


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.slow_beyond(8)
def test_layers_are_the_definition(kernel: Kernel, name: str, tile: int) -> None:
    case = make_case(**LAYERS[name])
    for mode in MODES if LAYERS[name]["rows"] == 37 else [(len(case.x) + tile) % 4]:
        check(kernel, case, tile, mode=mode, seed=mode + 7)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("multiprocessors", [8, 2, 132])
@pytest.mark.slow_beyond(4)
def test_few_rows_are_split_over_blocks(kernel: Kernel, tile: int, multiprocessors: int) -> None:
    case = make_case(4, 64, 576, 17, residual=True, act=Activation.GELU)
    together = check(kernel, case, tile)
    assert torch.equal(check(kernel, case, tile, multiprocessors=multiprocessors, mode=3), together)


@pytest.mark.parametrize("tile", TILES)
def test_every_schedule_gives_the_same_bits(kernel: Kernel, tile: int) -> None:
    case = make_case(4, 192, 384, 70, act=Activation.GELU)
    first = kernel(case, tile)
    for seed in range(2, 5):
        assert torch.equal(kernel(case, tile, mode=seed % 4, seed=seed), first)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("shared_limit", "buffers"), [(HOPPER, "most"), (SMALL, "fewest")])
def test_less_shared_memory_means_fewer_buffers(kernel: Kernel, tile: int, shared_limit: int, buffers: str) -> None:
    """Layers of width 512 run wherever the tile fits; where it does not, the launch says so and writes nothing."""
    case = make_case(4, 512, 64, 33, rank=128)
    error, y = kernel.launch(case, tile, shared_limit=shared_limit)
    if buffers == "fewest" and tile in (0, 1):
        assert error == "monarch_linear: the tile needs more shared memory than a block may have"
        assert y.isnan().all()
    else:
        assert error is None
        assert relative_error(y, case.truth) <= TOLERANCE[torch.bfloat16]


def test_a_nan_stays_in_its_row(kernel: Kernel) -> None:
    for nb, tile in ((4, 0), (2, 3), (8, 2)):
        case = make_case(nb, 24 * nb, 20 * nb, 50, act=Activation.GELU, residual=True)
        clean = kernel(case, tile)
        case.x[[3, 41], 7] = torch.nan
        y = kernel(case, tile)
        hit = torch.isin(torch.arange(50), torch.tensor([3, 41]))
        assert y[hit].isnan().all()
        assert torch.equal(y[~hit], clean[~hit])


def test_is_the_cpu_implementation(kernel: Kernel) -> None:
    """Both round where the other does, so they differ by the order of sums alone."""
    case = make_case(4, 384, 384, 65, act=Activation.GELU, residual=True)
    expected = blocked_reference(case.x, case.layer, case.act, case.residual)
    assert relative_error(kernel(case, 1), expected.double()) <= 1e-3


def test_no_rows_is_no_launch(kernel: Kernel) -> None:
    assert kernel(make_case(4, 64, 64, 0), 0).shape == (0, 64)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((8, 3, 16, 16, 16), "nblocks must be 2, 4 or 8"),
        ((8, 4, 12, 4, 16), "p must be a multiple of 8"),
        ((8, 4, 16, 3, 16), "nblocks * c must be a multiple of 16"),
        ((8, 4, 16, 4, 15), "s must be even"),
        ((8, 2, 16, 8, 6), "nblocks * s a multiple of 8"),
        ((-1, 4, 16, 4, 16), "not positive"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(kernel: Kernel, sizes: tuple[int, ...], text: str) -> None:
    error, y = kernel.launch(make_case(4, 64, 64, 8), 0, sizes=sizes)
    assert text in str(error)
    assert y.isnan().all()


def test_tiles_are_those_that_exist(kernel: Kernel) -> None:
    assert kernel.library.mw_monarch_linear_tiles() == len(TILES)
    assert kernel.launch(make_case(4, 64, 64, 8), len(TILES))[0] == "monarch_linear: no such tile"


def test_rows_of_a_chunk_are_in_different_banks(kernel: Kernel) -> None:
    assert kernel.library.mw_monarch_linear_banks_differ() == 1


# fmt: off
MODEL_LAYERS = [  # blocks, inputs, outputs
    (4, 192, 768), (4, 768, 192), (4, 192, 576), (4, 256, 512), (4, 512, 256), (4, 320, 640), (4, 384, 1152),
    (4, 1152, 384), (4, 384, 1536), (4, 1536, 384), (4, 384, 384), (4, 512, 2048), (4, 2048, 512), (4, 768, 768),
    (4, 768, 2304), (4, 768, 3072), (4, 3072, 768), (2, 384, 1536), (8, 1536, 384),
]
# fmt: on


@FULL
@pytest.mark.parametrize(("nb", "in_features", "out_features"), MODEL_LAYERS)
def test_layers_of_the_published_models_give_the_definition(
    kernel: Kernel, nb: int, in_features: int, out_features: int
) -> None:
    widening = out_features > in_features
    act = Activation.GELU if widening else Activation.NONE
    for rows, dtype in itertools.product((1, 15, 16, 17, 197, 1577), DTYPES):
        if rows > 17 and dtype == torch.float16:
            continue  # what differs between the dtypes does not depend on the rows
        case = make_case(nb, in_features, out_features, rows, dtype=dtype, act=act, residual=not widening)
        for tile in TILES if rows <= 17 else [rows % 2]:
            check(kernel, case, tile, mode=rows % 4)


BARRIER_2 = "sync_block();                  // sync: phase 2 barrier, which the intermediate waits for too"
PLANTED_BUGS = {
    "no wait in phase 1": ("chunks.wait();       // sync: phase 1 wait", ""),
    "no barrier in phase 1": ("sync_block();        // sync: phase 1 barrier", ""),
    "no barrier between the phases": (BARRIER_2, "if (depth != 0 || first != chunks.first_column) sync_block();"),
    "no barrier in phase 2": (BARRIER_2, "if (depth == 0) sync_block();"),
    "copies before the barrier in phase 2": (
        BARRIER_2 + "\n      chunks.copy_next_of_phase2();  // sync: phase 2 copy",
        "chunks.copy_next_of_phase2();\n      sync_block();",
    ),
    "copies before the barrier in phase 1": (
        "sync_block();        // sync: phase 1 barrier\n        chunks.copy_next();  // sync: phase 1 copy",
        "chunks.copy_next();\n        sync_block();",
    ),
    "no wait in phase 2": ("chunks.wait();                 // sync: phase 2 wait", ""),
}
"""Text of monarch_linear.cuh, and its replacement. Each is compiled, so the last two run in full runs only."""


@pytest.mark.parametrize("bug", in_full_runs(PLANTED_BUGS, list(PLANTED_BUGS)[5:]))
def test_planted_bugs_give_wrong_results(emulated: Build, bug: str) -> None:
    mutations = {"linear/monarch_linear.cuh": PLANTED_BUGS[bug]}
    mutant = Kernel(emulated("monarch_linear", mutations=mutations, defines=("ONE_VARIANT",)))
    case = make_case(4, 320, 320, 64)

    def right(mode: int) -> bool:
        error, y = mutant.launch(case, 2, mode=mode)
        return error is None and relative_error(y, case.truth) <= TOLERANCE[torch.bfloat16]

    assert not all(right(mode) for mode in MODES)
