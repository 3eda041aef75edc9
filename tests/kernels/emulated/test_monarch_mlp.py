"""The fused MLP's own source on the CPU emulator, against the float64 value without rounding between its steps."""

import ctypes
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from milkweed.kernels.blocked_mlp import (
    BLOCK_WIDTHS,
    DTYPES,
    NBLOCKS,
    TILES,
    BlockedMlp,
    Layer,
    block_mlp,
    mlp_reference,
    tile_shared_bytes,
)
from milkweed.kernels.reference import monarch_reference

from .emulation import FULL, MODES, Build, guarded, guards_untouched, launch, relative_error

TOLERANCE = {torch.bfloat16: 6e-3, torch.float16: 1e-3}
POINTERS = ["x", "factor1", "stream", "factor2", "bias1", "bias2", "residual", "norm_weight", "norm_bias", "y"]
INTS = ["rows", "width", "block_width", "groups", "shared_limit"]


class Args(ctypes.Structure):
    """MonarchMlpArgs."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in POINTERS),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int) for name in INTS),
    ]


@dataclass(frozen=True)
class Case:
    width: int
    hidden: int
    tile: int
    rows: int
    dtype: torch.dtype = torch.bfloat16
    norm: bool = False
    residual: bool = True
    ranks: tuple[int, int] | None = None

    def __str__(self) -> str:
        extras = [
            text for text, there in (("norm", self.norm), ("plain", not self.residual), ("rank", self.ranks)) if there
        ]
        name = f"{self.width}-{self.hidden}-tile{self.tile}-M{self.rows}-{str(self.dtype)[6:]}"
        return "-".join([name, *extras])


@dataclass(frozen=True)
class Problem:
    """A case's inputs, as the kernel gets them, and the true output."""

    case: Case
    packed: BlockedMlp
    x: Tensor
    residual: Tensor | None
    norm: tuple[Tensor, Tensor, float] | None
    truth: Tensor


def rounded_layer(case: Case, features: int, outputs: int, rank: int | None, g: torch.Generator) -> Layer:
    p, s = features // NBLOCKS, outputs // NBLOCKS
    q = rank or min(p, s)
    w1 = (torch.randn(NBLOCKS, q, p, generator=g) / p**0.5).to(case.dtype)
    w2 = (torch.randn(NBLOCKS, s, q, generator=g) / q**0.5).to(case.dtype)
    return w1, w2, torch.randn(outputs, generator=g)


def make_problem(case: Case) -> Problem:
    g = torch.Generator().manual_seed(case.width + case.rows)
    ranks = case.ranks or (None, None)
    fc1 = rounded_layer(case, case.width, case.hidden, ranks[0], g)
    fc2 = rounded_layer(case, case.hidden, case.width, ranks[1], g)
    x, residual = ((torch.randn(case.rows, case.width, generator=g) + 0.5).to(case.dtype) for _ in range(2))
    norm = (torch.randn(case.width, generator=g), torch.randn(case.width, generator=g), 1e-5) if case.norm else None
    y = x.double()
    if norm is not None:
        y = F.layer_norm(y, (case.width,), norm[0].double(), norm[1].double(), norm[2])
    for w1, w2, bias in (fc1, fc2):
        assert bias is not None
        y = monarch_reference(y, w1.double(), w2.double()) + bias
        y = F.gelu(y) if y.shape[1] == case.hidden and w1 is fc1[0] else y
    if case.residual:
        y = y + residual.double()
    return Problem(case, block_mlp(fc1, fc2, case.dtype), x, residual if case.residual else None, norm, y)


def make_args(problem: Problem) -> tuple[Args, Tensor]:
    """The kernel's arguments and the tensor it writes in, of NaN between guards."""
    case, packed = problem.case, problem.packed
    out = guarded((case.rows, case.width), case.dtype)
    norm_weight, norm_bias, eps = problem.norm or (None, None, 0.0)
    tensors = (problem.x, *packed.tensors, problem.residual, norm_weight, norm_bias, out)
    ints = (case.rows, case.width, packed.block_width, packed.stream.shape[2], 227 * 1024)
    return Args(*(None if t is None else t.data_ptr() for t in tensors), eps, *ints), out


def run(library: ctypes.CDLL, problem: Problem, mode: int, seed: int = 1) -> Tensor:
    (args, out), dtype = make_args(problem), DTYPES.index(problem.case.dtype)
    assert launch(library.mw_monarch_mlp, mode, seed, dtype, problem.case.tile, ctypes.byref(args)) is None
    assert guards_untouched(out)
    return out


def check(library: ctypes.CDLL, case: Case, mode: int) -> None:
    problem = make_problem(case)
    assert relative_error(run(library, problem, mode), problem.truth) <= TOLERANCE[case.dtype]


@pytest.fixture(scope="module")
def quick(emulated: Build) -> ctypes.CDLL:
    return emulated("monarch_mlp")


QUICK = [
    *(Case(192, 768, tile=2, rows=rows, norm=rows % 2 == 0) for rows in (1, 15, 16, 17, 197)),
    *(Case(192, 768, tile=tile, rows=17, norm=True) for tile in (0, 3)),
    Case(192, 768, tile=0, rows=33, residual=False),
    Case(192, 768, tile=2, rows=197, dtype=torch.float16),
    Case(192, 768, tile=0, rows=17, dtype=torch.float16, norm=True),
    Case(160, 280, tile=2, rows=17, norm=True, ranks=(13, 39)),  # blocks of 40 in 48 columns; uneven everything
    Case(384, 1536, tile=3, rows=17, norm=True),  # the only ring of two stages
    Case(320, 640, tile=1, rows=33),  # four column warps, each for one of two tiles of rows in the last phase
]

# Small enough for all four modes.
SMALL = [
    Case(64, 80, tile=2, rows=35, norm=True),
    Case(32, 48, tile=3, rows=130),
    Case(64, 80, tile=0, rows=17, dtype=torch.float16, residual=False),
]

EVERY_WIDTH = [(192, 768), (256, 512), (256, 1024), (320, 640), (384, 1152), (384, 1536)]


@pytest.mark.parametrize("case", QUICK, ids=str)
@pytest.mark.slow_beyond(2)
def test_quick_shapes_give_the_mlp(quick: ctypes.CDLL, case: Case) -> None:
    check(quick, case, mode=case.rows % 4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_small_shapes_give_the_mlp_in_every_mode(quick: ctypes.CDLL, case: Case, mode: int) -> None:
    check(quick, case, mode)


@FULL
@pytest.mark.parametrize(("width", "hidden"), EVERY_WIDTH)
def test_every_shape_gives_the_mlp(emulated: Build, width: int, hidden: int) -> None:
    block_width = make_problem(Case(width, hidden, tile=0, rows=1)).packed.block_width
    tiles = [tile for tile in TILES if tile_shared_bytes(block_width, tile)]
    library = emulated("monarch_mlp", defines=("MW_EVERY_SHAPE",))
    for rows in (1, 15, 16, 17, 197, 1577):
        for i, (tile, dtype) in enumerate(product(tiles, DTYPES)):
            case = Case(width, hidden, tile, rows, dtype, norm=i % 2 == rows % 2)
            check(library, case, mode=(rows + i) % 4)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_same_bits_whatever_the_schedule(quick: ctypes.CDLL, case: Case) -> None:
    problem = make_problem(case)
    outputs = [run(quick, problem, mode, seed).view(torch.int16) for mode in MODES for seed in (1, 2)]
    assert all(torch.equal(output, outputs[0]) for output in outputs)


@pytest.mark.parametrize("case", SMALL[:2], ids=str)
def test_nan_stays_in_its_row(quick: ctypes.CDLL, case: Case) -> None:
    problem = make_problem(case)
    clean = run(quick, problem, mode=0)
    problem.x[5, 7] = torch.nan
    dirty = run(quick, problem, mode=0)
    assert dirty[5].isnan().all()
    others = torch.arange(case.rows) != 5
    assert torch.equal(dirty[others], clean[others])


def test_the_reference_in_torch_rounds_where_the_kernel_does(quick: ctypes.CDLL) -> None:
    problem = make_problem(Case(192, 768, tile=2, rows=33, norm=True))
    plain = mlp_reference(problem.x, problem.packed, problem.residual, problem.norm)
    assert relative_error(run(quick, problem, mode=0), plain.double()) <= 1e-3
    assert relative_error(plain, problem.truth) <= TOLERANCE[torch.bfloat16]


def test_no_rows_is_no_work(quick: ctypes.CDLL) -> None:
    assert run(quick, make_problem(Case(64, 80, tile=2, rows=0)), mode=0).shape == (0, 64)


def test_refusals_say_why(quick: ctypes.CDLL) -> None:
    problem = make_problem(SMALL[0])
    refusals: list[tuple[dict[str, int], int, str]] = [
        ({"shared_limit": 48 * 1024}, 2, "more shared memory than the device has"),
        ({}, 1, "no such tile for this block width"),
        ({}, 4, "tile must be 0, 1, 2 or 3"),
        ({"block_width": 112}, 2, "block width must be"),
        ({"width": 60}, 2, "width must be a multiple of 32"),
        ({"width": 256}, 2, "width exceeds 4 block widths"),
        ({"groups": 0}, 2, "no hidden columns"),
        ({"rows": -1}, 2, "negative number of rows"),
    ]
    for changes, tile, reason in refusals:
        args, _ = make_args(problem)
        for name, value in changes.items():
            setattr(args, name, value)
        dtype = DTYPES.index(problem.case.dtype)
        assert reason in str(launch(quick.mw_monarch_mlp, 0, 1, dtype, tile, ctypes.byref(args)))


def test_python_knows_the_tiles(quick: ctypes.CDLL) -> None:
    assert quick.mw_monarch_mlp_tiles() == len(TILES)
    for width, tile in product(BLOCK_WIDTHS, TILES):
        expected = quick.mw_monarch_mlp_shared_bytes(width, tile)
        assert tile_shared_bytes(width, tile) == (expected or None)


LANDED = "copy_async_wait<C::stages - 2>();  // sync: stage landed"
SHARED = "sync_block();                      // sync: stage shared"
PLANTED = {
    "a stage is read before it has landed": (LANDED, ""),
    "the wait is for one group too few": (LANDED, "copy_async_wait<C::stages - 1>();"),
    "no barrier between stages": (SHARED, ""),
    "a stage is filled again before the barrier": (f"{SHARED}\n    issue();", "issue(); sync_block();"),
    "u is read before it is complete": ("sync_block();  // sync: u complete", ""),
    "x is normalised before it has landed": ("copy_async_wait<C::stages - 1>();  // sync: x landed", ""),
    "x is normalised before all of it has": ("sync_block();                      // sync: x shared", ""),
}


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.slow_beyond(1)
def test_planted_bugs_are_caught(emulated: Build, planted: str) -> None:
    text, replacement = PLANTED[planted]
    header = "mlp/monarch_mlp_ring.cuh" if "stage" in text.partition("sync: ")[2] else "mlp/monarch_mlp.cuh"
    library = emulated("monarch_mlp", mutations={header: (text, replacement)}, defines=("MW_ONE_SHAPE",))
    problem = make_problem(SMALL[0])
    caught = [
        mode for mode in MODES if relative_error(run(library, problem, mode), problem.truth) > TOLERANCE[torch.bfloat16]
    ]
    assert caught
