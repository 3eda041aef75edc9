"""Activation-aware projection: as good as the golden one and other descents, exact where it can be."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from milkweed.models.projection.statistics import InputStatistics

from .monarch_fit import fit_monarch

Inputs = Callable[..., InputStatistics]

SHAPES = [(8, 8, 4, None), (7, 10, 4, None), (9, 5, 3, 1), (6, 8, 2, 1), (5, 7, 3, None)]
"""(out, in, nblocks, rank): sub-blocks of ranks 0 and 1, padded rows and columns, wide and tall."""

shapes = pytest.mark.parametrize("shape", [*SHAPES, (32, 48, 4, 2), (30, 31, 4, None)], ids=str)


def matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def objective(weight: Tensor, other: Tensor, covariance: Tensor) -> float:
    """tr((W-M) C (W-M)^T) / tr(W C W^T), as it is written."""
    W, E, C = weight.numpy(), (weight - other).numpy(), covariance.numpy()
    return float(np.trace(E @ C @ E.T) / np.trace(W @ C @ W.T))


@pytest.mark.parametrize("name", ["48x32_nb4_r2", "32x64_nb4_r2", "64x64_nb4_r3"])
def test_it_is_as_good_as_the_golden_projections(shared: Path, name: str) -> None:
    with np.load(shared / "golden" / "ext_project.npz") as data:
        golden = {key: torch.from_numpy(data[f"aware_{name}/{key}"]) for key in ("W", "mean", "cov")}
        plain, white, best = (float(data[f"aware_{name}/rel_obj_{key}"]) for key in ("plain", "blockwhite", "bcd"))
        rank = int(data[f"aware_{name}/rank"])
    inputs = InputStatistics(golden["mean"], golden["cov"], 2000)
    start, whole = (fit_monarch(golden["W"], inputs, 4, rank, sweeps=sweeps) for sweeps in (0, 100))
    assert start.objective == pytest.approx(white, rel=1e-3)
    assert whole.objective <= best * (1 + 1e-3) < plain
    for found in (start, whole):
        M = found.dense(golden["W"])
        assert found.objective == pytest.approx(objective(golden["W"], M, golden["cov"]), rel=1e-9)
        np.testing.assert_allclose(found.bias_shift, (golden["W"] - M).numpy() @ golden["mean"].numpy(), atol=1e-12)


@shapes
@pytest.mark.slow_beyond(2)
def test_more_sweeps_are_no_worse_and_all_better_than_blind(
    inputs: Inputs, shape: tuple[int, int, int, int | None]
) -> None:
    rows, columns, nblocks, rank = shape
    for seed in range(3):
        W, seen = matrix(rows, columns, seed), inputs(columns, seed=seed)
        found = [fit_monarch(W, seen, nblocks, rank, ridge=1e-9, sweeps=sweeps) for sweeps in (0, 1, 2, 4, 16)]
        blind = fit_monarch(W, None, nblocks, rank).dense(W)
        assert found[1].objective < objective(W, blind, seen.covariance)
        for fewer, more in pairwise(found):
            # The last refit helps one sweep's result a little more than another's.
            assert more.objective <= 1.01 * fewer.objective


@pytest.mark.parametrize(("rows", "columns"), [(12, 20), (20, 12)])
def test_one_block_is_the_whitened_svd(inputs: Inputs, rows: int, columns: int) -> None:
    W, seen, ridge = matrix(rows, columns), inputs(columns), 1e-3
    C = seen.covariance.numpy()
    values, vectors = np.linalg.eigh(C + ridge * np.trace(C) / columns * np.eye(columns))
    root, back = (vectors * values**power @ vectors.T for power in (0.5, -0.5))
    U, S, Vh = np.linalg.svd(W.numpy() @ root, full_matrices=False)
    want = (U[:, :4] * S[:4]) @ Vh[:4] @ back
    found = fit_monarch(W, seen, 1, 4, ridge=ridge, sweeps=50)
    np.testing.assert_allclose(found.dense(W), want, atol=1e-9)


def test_inputs_of_few_directions_are_kept_whole(inputs: Inputs) -> None:
    """A covariance of rank 3: three pairs a sub-block are enough for every class, and nothing is divided by zero."""
    W, seen = matrix(24, 16), inputs(16, directions=3)
    assert int(torch.linalg.matrix_rank(seen.covariance)) == 3
    found = fit_monarch(W, seen, 2, 3)
    assert found.objective < 1e-4
    assert fit_monarch(W, seen, 2, 1).objective < 0.5
    assert torch.isfinite(found.w1).all()
    assert torch.isfinite(found.w2).all()


@pytest.mark.parametrize("ratio", [1e-13, 1e9])
def test_one_huge_or_tiny_input_is_no_trouble(inputs: Inputs, ratio: float) -> None:
    W = matrix(12, 16)
    scale = torch.ones(16, dtype=torch.float64)
    scale[5] = ratio
    seen = inputs(16)
    scaled = InputStatistics(seen.mean * scale, seen.covariance * scale.outer(scale), seen.tokens)
    found = fit_monarch(W, scaled, 4, 2)
    assert torch.isfinite(found.dense(W)).all()
    assert 0 <= found.objective < 0.5
    if ratio > 1:  # that input is nearly all the output: it must be kept
        assert found.objective < 1e-6


def test_a_weight_of_zeros_stays_so(inputs: Inputs) -> None:
    found = fit_monarch(torch.zeros(8, 12, dtype=torch.float64), inputs(12), 4)
    assert found.objective == 0
    assert torch.equal(found.dense(torch.zeros(8, 12)), torch.zeros(8, 12, dtype=torch.float64))
    assert torch.isfinite(found.w1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_comes_in_the_weights_dtype(inputs: Inputs, dtype: torch.dtype) -> None:
    W = matrix(32, 48).to(dtype)
    found = fit_monarch(W, inputs(48), 4, 2)
    exact = fit_monarch(W.double(), inputs(48), 4, 2)
    assert {found.w1.dtype, found.w2.dtype, found.bias_shift.dtype} == {dtype}
    assert torch.equal(found.w1, exact.w1.to(dtype))
    assert torch.equal(found.w2, exact.w2.to(dtype))
    # both factors are of one size, so that neither leaves the range of half precision
    norms = [factor.double().norm(dim=dim).max() for factor, dim in ((exact.w1, -1), (exact.w2, -2))]
    assert 0.2 < float(norms[0] / norms[1]) < 5


@pytest.mark.parametrize("ridge", [0.0, float("nan")])
def test_a_ridge_that_is_none_is_refused(inputs: Inputs, ridge: float) -> None:
    with pytest.raises(ValueError, match=f"ridge {ridge} must be greater than 0"):
        fit_monarch(torch.zeros(4, 4), inputs(4), 2, ridge=ridge)
