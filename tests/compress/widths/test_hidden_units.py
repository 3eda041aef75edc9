"""Fewer hidden units: the ridge solution, the order of elimination, and units that cost nothing."""

import numpy as np
import torch
from torch import Tensor

from milkweed.compress.widths.hidden_units import fit_units, kept_units
from milkweed.models.projection.statistics import InputStatistics, Moments


def correlated(count: int, hidden: int, seed: int = 0) -> Tensor:
    """Hidden units (count, hidden) of which some say nearly the same, with means of their own."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(count, hidden // 2, generator=generator, dtype=torch.float64)
    mixing = torch.randn(hidden // 2, hidden, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, hidden, generator=generator, dtype=torch.float64)
    return common @ mixing + 0.3 * noise + torch.randn(hidden, generator=generator, dtype=torch.float64)


def layer(out: int, hidden: int) -> Tensor:
    return torch.randn(out, hidden, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def statistics(units: Tensor, wanted: Tensor) -> InputStatistics:
    moments = Moments()
    moments.add(torch.cat([units, wanted], 1))
    return moments.statistics("fc2")


def test_the_refit_is_the_ridge_solution() -> None:
    """Least squares by numpy, the ridge as further rows that hold the weights at the layer's own."""
    units, weight, ridge = correlated(500, 12), layer(5, 12), 0.05
    wanted = units @ weight.T + torch.randn(500, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    fit = fit_units(statistics(units, wanted), weight, 7, ridge)
    h, y = units[:, fit.kept].numpy(), wanted.numpy()
    start = weight[:, fit.kept].numpy()
    centred = (h - h.mean(0)) / np.sqrt(len(h))
    held = np.sqrt(ridge * centred.var(0).sum() * len(h) / 7) * np.eye(7)
    rows = np.concatenate([centred, held])
    targets = np.concatenate([(y - y.mean(0)) / np.sqrt(len(h)), held @ start.T])
    solution = np.linalg.lstsq(rows, targets, rcond=None)[0].T
    np.testing.assert_allclose(fit.weight.numpy(), solution, rtol=0, atol=1e-5)
    np.testing.assert_allclose(fit.bias.numpy(), y.mean(0) - solution @ h.mean(0), rtol=0, atol=1e-4)


def test_each_unit_that_goes_is_the_one_that_is_missed_least() -> None:
    """Refit the layer without each unit in turn, and take away the one whose loss raises the error least."""
    units, weight, ridge = correlated(400, 10), layer(4, 10), 1e-3
    covariance = torch.cov(units.T, correction=0)
    damped = covariance + ridge * covariance.diagonal().mean() * torch.eye(10, dtype=torch.float64)

    def error(left: list[int]) -> float:
        inner = damped[left][:, left]
        fitted = torch.linalg.solve(inner, damped[left] @ weight.T)
        return float(((weight @ damped) * weight).sum() - (fitted * (inner @ fitted)).sum())

    left = list(range(10))
    for _ in range(6):
        left = min(([unit for unit in left if unit != gone] for gone in left), key=error)
        assert kept_units(covariance, weight, len(left), ridge).tolist() == left


def test_units_that_say_nothing_or_the_same_go_at_no_loss() -> None:
    """One of eight units is always zero, one constant, and two are twins: five are enough, with hardly any ridge."""
    units, weight = correlated(300, 8), layer(3, 8)
    units[:, 2], units[:, 5], units[:, 6] = 0, 4, units[:, 1]
    wanted = units @ weight.T
    fit = fit_units(statistics(units, wanted), weight, 5, 1e-9)
    assert not {2, 5} & set(fit.kept.tolist())
    assert len({1, 6} & set(fit.kept.tolist())) == 1
    torch.testing.assert_close(units[:, fit.kept] @ fit.weight.T + fit.bias, wanted, rtol=0, atol=1e-4)


def test_all_units_and_outputs_as_they_are_keep_the_layer() -> None:
    units, weight = correlated(300, 8), layer(3, 8)
    fit = fit_units(statistics(units, units @ weight.T + 2), weight, 8)
    assert fit.kept.tolist() == list(range(8))
    torch.testing.assert_close(fit.weight, weight, rtol=0, atol=2e-4)  # moments are sums of float32 products
    torch.testing.assert_close(fit.bias, torch.full((3,), 2.0, dtype=torch.float64), rtol=0, atol=2e-3)


def test_units_that_never_change_have_no_variance_to_share() -> None:
    units, weight = torch.zeros(50, 4), layer(2, 4)
    fit = fit_units(statistics(units, torch.ones(50, 2)), weight, 2)
    assert torch.isfinite(fit.weight).all()
    torch.testing.assert_close(fit.bias, torch.ones(2, dtype=torch.float64))
