"""Input statistics: mean and covariance as numpy has them, whatever the batches and however large the mean."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from milkweed.models.compress.projection.statistics import InputStatistics

from ...plain_statistics import collect_statistics


def collect(batches: list[Tensor]) -> InputStatistics:
    model = nn.Sequential(nn.Identity(), nn.Linear(batches[0].shape[-1], 3))
    return collect_statistics(model, ["1"], batches)["1"]


def reference(batches: list[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    x = np.concatenate([batch.flatten(0, -2).double().numpy() for batch in batches])
    return x.mean(0), np.cov(x.T, bias=True)


@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_moments_are_numpys(mean: float) -> None:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(5, 5, generator=generator)
    batches = [torch.randn(count, 7, 5, generator=generator) @ mixed + mean for count in (3, 1, 4)]
    found = collect(batches)
    want_mean, want_covariance = reference(batches)
    assert found.tokens == 8 * 7
    assert found.mean.dtype == found.covariance.dtype == torch.float64
    np.testing.assert_allclose(found.mean, want_mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.covariance, want_covariance, rtol=1e-5, atol=1e-5)


def test_every_named_layer_gets_its_own_inputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    before = copy.deepcopy(model.state_dict())
    batches = [torch.randn(9, 4), torch.randn(2, 4)]
    found = collect_statistics(model, ["0", "2"], batches)
    with torch.no_grad():
        hidden = [model[1](model[0](batch)) for batch in batches]
    for name, seen in (("0", batches), ("2", hidden)):
        mean, covariance = reference(seen)
        np.testing.assert_allclose(found[name].mean, mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[name].covariance, covariance, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


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


def test_no_image_is_refused_by_the_layers_name() -> None:
    with pytest.raises(ValueError, match="layer 1 got no input: calibration needs at least one image"):
        collect_statistics(nn.Sequential(nn.Identity(), nn.Linear(2, 2)), ["1"], [])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_activations_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="layer 1: its inputs on the calibration images are not finite"):
        collect([torch.ones(4, 2), torch.tensor([[1.0, bad]])])


def test_hooks_are_removed_when_the_model_fails() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    with pytest.raises(RuntimeError):
        collect_statistics(model, ["0"], [torch.ones(1, 5)])
    assert not model[0]._forward_pre_hooks
