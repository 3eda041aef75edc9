"""Input statistics: mean and covariance as numpy has them, whatever the batches and however large the mean."""

import numpy as np
import pytest
import torch
from torch import Tensor

from milkweed.models.projection.statistics import InputStatistics, Moments


def collect(batches: list[Tensor]) -> InputStatistics:
    moments = Moments()
    for batch in batches:
        moments.add(batch)
    return moments.statistics("1")


@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_moments_are_numpys(mean: float) -> None:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(5, 5, generator=generator)
    batches = [torch.randn(count, 7, 5, generator=generator) @ mixed + mean for count in (3, 1, 4)]
    found = collect(batches)
    x = np.concatenate([batch.flatten(0, -2).double().numpy() for batch in batches])
    assert found.tokens == 8 * 7
    assert found.mean.dtype == found.covariance.dtype == torch.float64
    np.testing.assert_allclose(found.mean, x.mean(0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.covariance, np.cov(x.T, bias=True), rtol=1e-5, atol=1e-5)


def test_merging_is_as_measuring_all_at_once() -> None:
    generator = torch.Generator().manual_seed(1)
    one = torch.randn(10, 4, generator=generator)
    other = 3 * torch.randn(30, 4, generator=generator) + 7
    merged, whole = collect([one]).merged(collect([other])), collect([one, other])
    assert merged.tokens == whole.tokens == 40
    torch.testing.assert_close(merged.mean, whole.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(merged.covariance, whole.covariance, rtol=1e-5, atol=1e-5)


def test_uncentred_moments_are_about_zero() -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64).float() + 5
    found = collect([x]).uncentred()
    assert torch.equal(found.mean, torch.zeros(3, dtype=torch.float64))
    np.testing.assert_allclose(found.covariance, (x.double().T @ x.double() / 50).numpy(), rtol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_activations_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="layer 1: its inputs on the calibration images are not finite"):
        collect([torch.ones(4, 2), torch.tensor([[1.0, bad]])])
