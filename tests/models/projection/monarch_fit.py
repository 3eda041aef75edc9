"""Fits Monarch layers as `fit_layer` does, and shows the factors."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from milkweed.kernels.reference import monarch_to_dense
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.projection.layer_fit import FitRequest, fit_layer
from milkweed.models.projection.statistics import InputStatistics


@dataclass(frozen=True)
class MonarchFit:
    """The factors of the layer that was fitted to a weight, with the shift of its bias and its error."""

    w1: Tensor
    w2: Tensor
    bias_shift: Tensor
    error: float

    @property
    def objective(self) -> float:
        return self.error**2

    def dense(self, weight: Tensor) -> Tensor:
        """The matrix in the place of `weight`."""
        return monarch_to_dense(self.w1, self.w2, *weight.shape)


def fit_monarch(
    weight: Tensor, inputs: InputStatistics | None, nblocks: int, rank: int | None = None, **options: Any
) -> MonarchFit:
    """Fit to outputs on inputs of these statistics, or to the weight alone."""
    rows, columns = weight.shape
    fit = fit_layer(FitRequest(weight, LayerSpec("monarch", columns, rows, nblocks, rank), inputs), **options)
    return MonarchFit(fit.state["blkdiag1"], fit.state["blkdiag2"], fit.bias_shift, fit.error)
