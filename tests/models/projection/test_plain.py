"""D2S against fly's recorded projections, for non-divisible shapes, and against the theory of its error."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

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
