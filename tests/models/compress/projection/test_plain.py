"""D2S against fly's recorded projections, for non-divisible shapes, and against the theory of its error."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from milkweed.kernels.reference import monarch_to_dense
from milkweed.models.layers.monarch import MonarchLinear
from milkweed.models.layers.shapes import monarch_shapes

from .monarch_fit import MonarchFit, fit_monarch

TOLERANCE = 1e-10

SQUARE = ["n16_sizes4x4", "n36_sizes6x6", "n64_sizes8x8", "n196_sizes14x14", "exact_n36"]
RANK = [
    "48x48_nb4_r3",
    "128x32_nb4_r2",
    "32x128_nb4_r2",
    "64x64_nb2_r16",
    "64x64_nb8_r1",
    "256x256_nb16_r1",
    "96x48_nb4_r1",
    "48x96_nb4_r5",
    "192x768_nb4_r12",
    "768x192_nb4_r12",
]
EXTENDED = [
    "70x50_nb4",
    "50x70_nb4",
    "197x197_nb4",
    "384x196_nb8",
    "256x64_nb16",
    "30x31_nb4",
    "64x147_nb4",
    "48x48_nb4",
]


def case(shared: Path, file: str, name: str) -> dict[str, np.ndarray]:
    with np.load(shared / "golden" / file) as arrays:
        return {key.split("/")[1]: arrays[key] for key in arrays.files if key.startswith(f"{name}/")}


def check(golden: dict[str, np.ndarray], got: MonarchFit, weight: Tensor) -> None:
    expected = torch.from_numpy(golden["reconstructed"]).double()
    tolerance = TOLERANCE if golden["reconstructed"].dtype == np.float64 else 1e-5  # M itself is stored rounded there
    found = got.dense(weight).double()
    assert (found - expected).abs().max() <= tolerance
    assert got.error == pytest.approx(float(golden["rel_fro_error"]), abs=1e-7 if tolerance > 1e-9 else 1e-12)
    assert float((found - weight.double()).norm() / weight.double().norm()) == pytest.approx(got.error, abs=1e-12)
    if "w1" in golden:
        assert got.w1.shape == golden["w1"].shape
        assert got.w2.shape == golden["w2"].shape


@pytest.mark.parametrize("name", SQUARE)
def test_rank_one_projections_are_flys(name: str, shared: Path) -> None:
    golden = case(shared, "fly_project.npz", f"square_{name}")
    weight = torch.from_numpy(golden["M"])
    check(golden, fit_monarch(weight, None, len(golden["w1"]), 1), weight)


@pytest.mark.parametrize("name", RANK)
def test_rank_projections_are_flys_and_have_the_layers_shapes(name: str, shared: Path) -> None:
    golden = case(shared, "fly_project.npz", f"rank_{name}")
    weight = torch.from_numpy(golden["M"]).double()
    nblocks, rank = (int(part[2:] if part[:2] == "nb" else part[1:]) for part in name.split("_")[1:])
    got = fit_monarch(weight, None, nblocks, rank)
    check(golden, got, weight)
    assert (tuple(got.w1.shape), tuple(got.w2.shape)) == monarch_shapes(*weight.T.shape, nblocks, rank)


def test_projections_in_flys_other_row_order_map_onto_ours(shared: Path) -> None:
    """fly's b1, b2 form orders rows (l, J, b2): row (i*J + j)*b2 + t there is row (i*b2 + t)*J + j here."""
    golden = case(shared, "fly_project.npz", "b1b2_32x32_k4_j4_b12_b21")
    weight = torch.from_numpy(golden["M"])
    N, b1, b2 = (int(golden[key]) for key in ("nblocks1", "b1", "b2"))
    order = torch.arange(len(weight)).view(-1, N, b2).transpose(1, 2).reshape(-1)
    got = fit_monarch(weight[order], None, N, b1)
    ours = torch.empty_like(weight)
    ours[order] = got.dense(weight)
    assert (ours - torch.from_numpy(golden["reconstructed"])).abs().max() <= TOLERANCE
    assert got.error == pytest.approx(float(golden["rel_fro_error"]), abs=1e-12)


@pytest.mark.parametrize("name", EXTENDED)
def test_shapes_that_do_not_divide(name: str, shared: Path) -> None:
    golden = case(shared, "ext_project.npz", f"ext_{name}")
    weight = torch.from_numpy(golden["M"])
    got = fit_monarch(weight, None, int(golden["nblocks"]))
    assert got.w1.shape == golden["blkdiag1"].shape
    assert got.w2.shape == golden["blkdiag2"].shape
    check(golden, got, weight)


@pytest.mark.parametrize("shape", [(50, 70, 4), (31, 30, 4), (7, 5, 3), (5, 1, 1), (50, 70, 4, 3)], ids=str)
def test_a_matrix_of_the_class_comes_back_exactly_where_blocks_are_padded(shape: tuple[int, ...]) -> None:
    out, inp, *options = shape
    torch.manual_seed(out)
    named = dict(zip(("nblocks", "rank"), options, strict=False))
    weight = MonarchLinear(inp, out, **named, dtype=torch.float64).dense_weight().detach()
    got = fit_monarch(weight, None, *options)
    assert got.error <= 1e-12
    assert (got.dense(weight) - weight).norm() <= 1e-14 * weight.norm()


@pytest.mark.parametrize(("out", "inp", "nblocks"), [(24, 36, 3), (50, 70, 4), (13, 29, 5), (16, 4, 4)])
def test_error_is_the_energy_of_the_singular_values_dropped(out: int, inp: int, nblocks: int) -> None:
    weight = torch.randn(out, inp, generator=torch.Generator().manual_seed(out), dtype=torch.float64)
    got = fit_monarch(weight, None, nblocks)
    p, s = -(-inp // nblocks), -(-out // nblocks)
    q, dropped = min(p, s), 0.0
    for k in range(nblocks):
        for j in range(nblocks):
            block = weight[j::nblocks, k * p : (k + 1) * p]
            rank = sum((k * q + row) % nblocks == j for row in range(q))
            dropped += float(torch.linalg.svdvals(block)[rank:].square().sum())
    assert got.error == pytest.approx((dropped / float(weight.square().sum())) ** 0.5, rel=1e-12)


def test_full_rank_is_exact() -> None:
    weight = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert (fit_monarch(weight, None, 2, 3).dense(weight) - weight).norm() < 1e-14 * weight.norm()


def test_float32_weights_stay_float32_with_float64_accuracy() -> None:
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(0))
    got, exact = fit_monarch(weight, None, 4), fit_monarch(weight.double(), None, 4)
    assert got.w1.dtype == got.w2.dtype == torch.float32
    difference = monarch_to_dense(got.w1.double(), got.w2.double(), *weight.shape) - exact.dense(weight)
    assert difference.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("nblocks", "rank", "message"),
    [
        (9, None, "nblocks 9 must be between 1 and 8"),
        (0, None, "nblocks 0"),
        (2, 5, "rank 5 must be between 1 and 4"),
    ],
)
def test_bad_projections_are_refused(nblocks: int, rank: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_monarch(torch.zeros(8, 8), None, nblocks, rank)
