"""D2S against fly's recorded projections, for non-divisible shapes, and against the theory of its error."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from milkweed.kernels import monarch_to_dense
from milkweed.models.compress import Projection, project_linear, project_operator
from milkweed.models.layers.monarch import MonarchLinear, monarch_shapes

TOLERANCE = 1e-10

SQUARE = [
    "n16_sizes4x4",
    "n36_sizes6x6",
    "n64_sizes8x8",
    "n12_sizes4x3",
    "n48_sizes8x6",
    "n64_sizes16x4",
    "n64_sizes4x16",
    "n196_sizes14x14",
    "exact_n36",
]
SIMPLE = ["24x20_k4_j3", "20x24_k4_j5", "32x128_k8_j4", "128x32_k4_j8", "60x60_k5_j4"]
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
B1B2 = ["48x40_k4_j3_b12_b22", "32x32_k4_j4_b12_b21", "96x96_k8_j6_b14_b22"]
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


def reconstruct(w1: Tensor, w2: Tensor, weight: Tensor) -> Tensor:
    return monarch_to_dense(w1, w2, weight.shape[0], weight.shape[1])


def check(golden: dict[str, np.ndarray], got: Projection, weight: Tensor) -> None:
    w1, w2, error = got.w1, got.w2, got.relative_error
    expected = torch.from_numpy(golden["reconstructed"]).double()
    tolerance = TOLERANCE if golden["reconstructed"].dtype == np.float64 else 1e-5  # M itself is stored rounded there
    found = reconstruct(w1.double(), w2.double(), weight)
    assert (found - expected).abs().max() <= tolerance
    assert error == pytest.approx(float(golden["rel_fro_error"]), abs=1e-7 if tolerance > 1e-9 else 1e-12)
    assert float((found - weight.double()).norm() / weight.double().norm()) == pytest.approx(error, abs=1e-12)
    if "w1" in golden:
        assert w1.shape == golden["w1"].shape
        assert w2.shape == golden["w2"].shape


@pytest.mark.parametrize("name", [*(f"square_{name}" for name in SQUARE), *(f"simple_{name}" for name in SIMPLE)])
def test_rank_one_projections_are_flys(name: str, shared: Path) -> None:
    golden = case(shared, "fly_project.npz", name)
    weight = torch.from_numpy(golden["M"])
    (K, _, _), (J, _, _) = golden["w1"].shape, golden["w2"].shape
    check(golden, project_operator(weight, K, J, J), weight)


@pytest.mark.parametrize("name", RANK)
def test_rank_projections_are_flys_and_have_the_layers_shapes(name: str, shared: Path) -> None:
    golden = case(shared, "fly_project.npz", f"rank_{name}")
    weight = torch.from_numpy(golden["M"]).double()
    nblocks, rank = (int(part[2:] if part[:2] == "nb" else part[1:]) for part in name.split("_")[1:])
    got = project_linear(weight, nblocks, rank)
    check(golden, got, weight)
    assert (tuple(got.w1.shape), tuple(got.w2.shape)) == monarch_shapes(*weight.T.shape, nblocks, rank)


@pytest.mark.parametrize("name", B1B2)
def test_projections_in_flys_other_row_order_map_onto_ours(name: str, shared: Path) -> None:
    """fly's b1, b2 form orders rows (l, J, b2): row (i*J + j)*b2 + t there is row (i*b2 + t)*J + j here."""
    golden = case(shared, "fly_project.npz", f"b1b2_{name}")
    weight = torch.from_numpy(golden["M"])
    K, J, b1, b2 = (int(golden[key]) for key in ("nblocks1", "nblocks2", "b1", "b2"))
    order = torch.arange(len(weight)).view(-1, J, b2).transpose(1, 2).reshape(-1)
    got = project_operator(weight[order], K, J, J * b1)
    ours = torch.empty_like(weight)
    ours[order] = reconstruct(got.w1, got.w2, weight)
    assert (ours - torch.from_numpy(golden["reconstructed"])).abs().max() <= TOLERANCE
    assert got.relative_error == pytest.approx(float(golden["rel_fro_error"]), abs=1e-12)


@pytest.mark.parametrize("name", EXTENDED)
def test_shapes_that_do_not_divide(name: str, shared: Path) -> None:
    golden = case(shared, "ext_project.npz", f"ext_{name}")
    weight = torch.from_numpy(golden["M"])
    got = project_linear(weight, int(golden["nblocks"]))
    assert got.w1.shape == golden["blkdiag1"].shape
    assert got.w2.shape == golden["blkdiag2"].shape
    check(golden, got, weight)


@pytest.mark.parametrize("shape", [(50, 70, 4), (31, 30, 4), (7, 5, 3), (5, 1, 1), (50, 70, 4, 3)], ids=str)
def test_a_matrix_of_the_class_comes_back_exactly_where_blocks_are_padded(shape: tuple[int, ...]) -> None:
    out, inp, *options = shape
    torch.manual_seed(out)
    weight = MonarchLinear(inp, out, True, *options, dtype=torch.float64).dense_weight().detach()
    got = project_linear(weight, *options)
    assert got.relative_error <= 1e-12
    assert (reconstruct(got.w1, got.w2, weight) - weight).norm() <= 1e-14 * weight.norm()


@pytest.mark.parametrize(("out", "inp", "nblocks"), [(24, 36, 3), (50, 70, 4), (13, 29, 5), (16, 4, 4)])
def test_error_is_the_energy_of_the_singular_values_dropped(out: int, inp: int, nblocks: int) -> None:
    weight = torch.randn(out, inp, generator=torch.Generator().manual_seed(out), dtype=torch.float64)
    got = project_linear(weight, nblocks)
    p, s = -(-inp // nblocks), -(-out // nblocks)
    q, dropped = min(p, s), 0.0
    for k in range(nblocks):
        for j in range(nblocks):
            block = weight[j::nblocks, k * p : (k + 1) * p]
            rank = sum((k * q + row) % nblocks == j for row in range(q))
            dropped += float(torch.linalg.svdvals(block)[rank:].square().sum())
    assert got.relative_error == pytest.approx((dropped / float(weight.square().sum())) ** 0.5, rel=1e-12)


def test_full_rank_is_exact_even_with_slots_to_spare() -> None:
    weight = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = project_operator(weight, 2, 2, 20)
    assert got.w1.shape == (2, 20, 4)
    assert (reconstruct(got.w1, got.w2, weight) - weight).norm() < 1e-14 * weight.norm()


def test_float32_weights_stay_float32_with_float64_accuracy() -> None:
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(0))
    got, exact = project_linear(weight, 4), project_linear(weight.double(), 4)
    assert got.w1.dtype == got.w2.dtype == torch.float32
    difference = reconstruct(got.w1.double(), got.w2.double(), weight) - reconstruct(exact.w1, exact.w2, weight)
    assert difference.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("weight", "nblocks", "rank", "message"),
    [
        (torch.zeros(8), 2, None, "must be 2-D"),
        (torch.zeros(8, 8, dtype=torch.int64), 2, None, "must be a matrix"),
        (torch.full((8, 8), torch.nan), 2, None, "NaN"),
        (torch.zeros(8, 8), 9, None, "nblocks 9 must be between 1 and 8"),
        (torch.zeros(8, 8), 0, None, "nblocks 0"),
        (torch.zeros(8, 8), 2, 5, "rank 5 must be between 1 and 4"),
    ],
)
def test_bad_projections_are_refused(weight: Tensor, nblocks: int, rank: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        project_linear(weight, nblocks, rank)


def test_operator_that_does_not_chain_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a multiple of J"):
        project_operator(torch.zeros(9, 8), 2, 3, 4)
