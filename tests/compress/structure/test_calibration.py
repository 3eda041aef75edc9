"""Calibration: which images are held out, which ridge they choose, and layers that have no bias."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from milkweed.compress.structure.calibration import (
    MIN_IMAGES,
    RIDGES,
    CalibrationImages,
    calibrate,
    choose_ridge,
    held_out_error,
)
from milkweed.compress.structure.importance import weighted_statistics
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.projection.layer_fit import FitRequest, fit_layer

from ...models.conftest import statistics_of


def numbered(count: int) -> Tensor:
    """CalibrationImages whose only value is their number."""
    return torch.arange(float(count)).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)


def test_two_of_five_images_are_held_out() -> None:
    images = CalibrationImages.split(numbered(83))
    fitted, held_out = (torch.cat(part)[:, 0, 0, 0].int().tolist() for part in (images.fitted, images.held_out))
    assert held_out == [number for number in range(83) if number % 5 in (3, 4)]
    assert sorted([*fitted, *held_out]) == list(range(83))
    assert max(len(batch) for batch in images.fitted) == 32


def test_too_few_images_are_refused() -> None:
    with pytest.raises(ValueError, match=f"{MIN_IMAGES - 1} calibration images: at least {MIN_IMAGES} are needed"):
        CalibrationImages.split(numbered(MIN_IMAGES - 1))
    assert len(CalibrationImages.split(numbered(MIN_IMAGES)).held_out[0]) == 6


def net(bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 8, bias=bias)).requires_grad_(False)


def pixels(count: int) -> Tensor:
    return torch.randn(count, 3, 2, 2, generator=torch.Generator().manual_seed(1)) + 2


@pytest.mark.parametrize("bias", [True, False])
def test_statistics_are_weighted_ones_of_each_part_and_without_a_bias_about_zero(bias: bool) -> None:
    model, images = net(bias), CalibrationImages.split(pixels(60))
    told: list[tuple[int, int]] = []
    found = calibrate(model, ["1", "3"], images, lambda *done: told.append(done))
    for part, got, seed in ((images.fitted, found.fitted, 0), (images.held_out, found.held_out, 1)):
        want = weighted_statistics(model, ["1", "3"], part, seed=seed)
        mean, covariance = want["3"].mean.numpy(), want["3"].covariance.numpy()
        second = covariance if bias else covariance + np.outer(mean, mean)
        np.testing.assert_allclose(got["3"].mean, mean if bias else np.zeros(16), atol=1e-12)
        np.testing.assert_allclose(got["3"].covariance, second, rtol=1e-12)
        assert torch.equal(got["1"].covariance, want["1"].covariance)  # has a bias in either case
    # 36 images and 24 together
    together = 0.6 * found.fitted["1"].mean + 0.4 * found.held_out["1"].mean
    np.testing.assert_allclose(found.all()["1"].mean, together, rtol=1e-12)
    assert found.all()["1"].tokens == 60
    assert told == [(1, 3), (2, 3), (3, 3)]


def inputs(count: int, seed: int) -> Tensor:
    """Draw inputs of 40 features, a few directions of which vary more."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(40, 40, generator=torch.Generator().manual_seed(9), dtype=torch.float64)).Q
    sizes = 0.93 ** torch.arange(40, dtype=torch.float64)
    return torch.randn(count, 40, generator=generator, dtype=torch.float64) * sizes @ basis


def test_the_held_out_error_is_measured_on_outputs() -> None:
    linear, seen, other = nn.Linear(40, 10), inputs(50, 1), inputs(30, 2)
    weight, bias = linear.weight.detach().double(), linear.bias.detach().double()
    structure = LayerSpec("monarch", 40, 10, nblocks=1, rank=4)
    fit = fit_layer(FitRequest(weight, structure, statistics_of(seen)))
    want = other @ weight.T + bias
    got = other @ fit.weight.T + bias + fit.bias_shift
    error = (want - got).square().sum(1).mean() / (want - want.mean(0)).square().sum(1).mean()
    assert held_out_error(weight, fit.weight, statistics_of(seen), statistics_of(other)) == pytest.approx(
        float(error), rel=1e-6
    )


def test_the_ridge_is_the_best_on_images_not_fitted_to() -> None:
    """Few inputs ask for a large ridge, many for a small one; either is the best of all by trying them."""
    torch.manual_seed(0)
    linears = {"a": nn.Linear(40, 30)}
    weight = linears["a"].weight.detach()
    structure = LayerSpec("monarch", 40, 30, nblocks=1, rank=8)  # half of the weights
    chosen = []
    for count in (25, 20000):
        fitted, held_out = statistics_of(inputs(count, 3)), statistics_of(inputs(5000, 4))
        request = FitRequest(weight, structure, fitted)
        fits = {ridge: fit_layer(request, ridge=ridge).weight for ridge in RIDGES}
        errors = {ridge: held_out_error(weight, fit, fitted, held_out) for ridge, fit in fits.items()}
        found = choose_ridge(linears, {"a": fitted}, {"a": held_out})
        assert found == min(errors, key=lambda ridge: errors[ridge])
        chosen.append(found)
    assert chosen[0] > chosen[1]
