"""Chooses which hidden units of an MLP stay, and refits its second layer so that they do the work of all.

Units go one after the other, each the one whose loss costs the outputs least when the others take over its part
(Optimal Brain Surgeon, Hassibi and Stork 1992, with the covariance of the units as the Hessian). Then the second layer
is fitted anew by ridge regression, drawn to its own weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.projection.statistics import InputStatistics

RIDGE = 1e-3
"""Share of the units' mean variance that is added to each one's."""


@dataclass(frozen=True)
class UnitsFit:
    """The units that stay, and the layer that reads them.

    Args:
        kept: int64 (units,), ascending.
        weight: (out_features, units), float64.
        bias: (out_features,), float64; zeros where the statistics are uncentred.
    """

    kept: Tensor
    weight: Tensor
    bias: Tensor


def fit_units(statistics: InputStatistics, weight: Tensor, units: int, ridge: float = RIDGE) -> UnitsFit:
    """Keep `units` hidden units, and fit the layer behind them to what is wanted.

    The weights W minimise E|W h + b - y|^2 + ridge * var * |W - W0|^2 over the kept units h, where y are the wanted
    outputs, W0 the layer's own weights and var the kept units' mean variance.

    Args:
        statistics: of hidden units and wanted outputs together, (hidden + out_features) wide.
        weight: the layer's weight (out_features, hidden).
    """
    hidden, original = weight.shape[1], weight.detach().double().cpu()
    covariance = statistics.covariance[:hidden, :hidden]
    kept = kept_units(covariance, original, units, ridge)
    mean, target_mean = statistics.mean[:hidden][kept], statistics.mean[hidden:]
    start, inner = original[:, kept], covariance[kept][:, kept]
    missing = statistics.covariance[kept, hidden:] - inner @ start.T
    fitted = start + torch.linalg.solve(_damped(inner, ridge), missing).T
    return UnitsFit(kept, fitted, target_mean - fitted @ mean)


def kept_units(covariance: Tensor, weight: Tensor, units: int, ridge: float = RIDGE) -> Tensor:
    """The places of the units that stay, ascending, when the least needed go one by one.

    Args:
        covariance: of the hidden units, (hidden, hidden), float64.
        weight: of the layer that reads them, (out_features, hidden).
    """
    inverse, weight = torch.linalg.inv(_damped(covariance, ridge)), weight.double().clone()
    alive = torch.ones(len(covariance), dtype=torch.bool)
    for _ in range(len(covariance) - units):
        cost = weight.square().sum(0) / inverse.diagonal()
        cost[~alive] = torch.inf
        unit = int(cost.argmin())
        row = inverse[unit] / inverse[unit, unit]
        # The other units take over what this one told the outputs.
        weight -= weight[:, unit].outer(row)
        inverse -= inverse[:, unit].outer(row)
        alive[unit] = False
    return alive.nonzero()[:, 0]


def _damped(covariance: Tensor, ridge: float) -> Tensor:
    amount = ridge * covariance.diagonal().mean().clamp_min(torch.finfo(torch.float64).tiny / ridge)
    return covariance + amount * torch.eye(len(covariance), dtype=covariance.dtype)
