"""Learns from a few images, before a model is compressed, how its layers' inputs are distributed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn

from ...models.layers.layer_spec import LayerSpec
from ...models.layers.select import linear_layer
from ...models.progress import Count, ignore
from ...models.projection.layer_fit import FitRequest, fit_layer
from ...models.projection.parallel import each_on_one_thread
from ...models.projection.statistics import InputStatistics
from .importance import weighted_statistics
from .permutation import permuted

MIN_IMAGES = 16

TURN, FITTED = 5, 3
"""Three of every five images are fitted to, and two are held out for choices and figures.

So many are held out because a choice made on a few images fits only those.
"""

BATCH = 32
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
RIDGE_LAYERS = 6
RIDGE_SHARE = 0.5
RIDGE_SWEEPS = 3


@dataclass(frozen=True)
class CalibrationImages:
    """Calibration images, normalised, in batches: those that are fitted to, and those held out."""

    fitted: tuple[Tensor, ...]
    held_out: tuple[Tensor, ...]

    @classmethod
    def split(cls, images: Tensor) -> "CalibrationImages":
        """Hold out two of every five of (n, 3, H, W).

        Raises:
            ValueError: fewer than MIN_IMAGES.
        """
        if len(images) < MIN_IMAGES:
            raise ValueError(f"{len(images)} calibration images: at least {MIN_IMAGES} are needed")
        held = torch.arange(len(images)) % TURN >= FITTED
        return cls(images[~held].split(BATCH), images[held].split(BATCH))


@dataclass(frozen=True)
class Calibration:
    """Weighted input statistics on the fitted and on the held-out images, and the ridge chosen by the latter."""

    fitted: Mapping[str, InputStatistics]
    held_out: Mapping[str, InputStatistics]
    ridge: float

    def all(self) -> dict[str, InputStatistics]:
        """Statistics of all images together, for the final fit, when all choices are made."""
        return {name: statistics.merged(self.held_out[name]) for name, statistics in self.fitted.items()}

    def of(self, linears: Mapping[str, nn.Linear]) -> "Calibration":
        """The calibration of some of the layers, with a ridge of their own."""
        fitted, held_out = ({name: part[name] for name in linears} for part in (self.fitted, self.held_out))
        return Calibration(fitted, held_out, choose_ridge(linears, fitted, held_out))

    def rearranged(self, orders: Mapping[str, Tensor]) -> "Calibration":
        """The calibration of the model after hidden units have moved, by the name of their MLP."""
        moved = {f"{mlp}.fc2": order for mlp, order in orders.items()}
        fitted, held_out = (
            {name: permuted(inputs, moved[name]) if name in moved else inputs for name, inputs in part.items()}
            for part in (self.fitted, self.held_out)
        )
        return Calibration(fitted, held_out, self.ridge)


def calibrate(
    model: nn.Module, names: Sequence[str], images: CalibrationImages, progress: Count = ignore
) -> Calibration:
    """Measure the inputs of the named linear layers, and choose the ridge.

    Raises:
        ValueError: an activation that is not finite.
    """
    done, total = count(1), len(images.fitted) + len(images.held_out)

    def counted(batches: Sequence[Tensor]) -> Iterator[Tensor]:
        for batch in batches:
            yield batch
            progress(next(done), total)

    fitted = weighted_statistics(model, names, counted(images.fitted))
    held_out = weighted_statistics(model, names, counted(images.held_out), seed=1)
    linears = {name: linear_layer(model, name) for name in names}
    for name, linear in linears.items():
        if linear.bias is None:
            fitted[name], held_out[name] = fitted[name].uncentred(), held_out[name].uncentred()
    return Calibration(fitted, held_out, choose_ridge(linears, fitted, held_out))


def choose_ridge(
    linears: Mapping[str, nn.Linear],
    fitted: Mapping[str, InputStatistics],
    held_out: Mapping[str, InputStatistics],
) -> float:
    """The ridge whose low-rank fits to one part of the images are best on the other, over a few layers."""
    places = torch.linspace(0, len(linears) - 1, min(RIDGE_LAYERS, len(linears))).round().int().tolist()
    names = [list(linears)[place] for place in sorted(set(places))]

    def errors(name: str) -> list[float]:
        weight = linears[name].weight.detach().cpu()
        rank = max(1, int(RIDGE_SHARE * weight.numel() / sum(weight.shape)))
        structure = LayerSpec("monarch", weight.shape[1], weight.shape[0], 1, rank, linears[name].bias is not None)
        losses = []
        for ridge in RIDGES:
            fit = fit_layer(FitRequest(weight, structure, fitted[name]), ridge=ridge, sweeps=RIDGE_SWEEPS)
            losses.append(held_out_error(weight, fit.weight, fitted[name], held_out[name]))
        return losses

    tables = each_on_one_thread(errors, names)
    sums = [sum(column) for column in zip(*tables, strict=True)]
    return RIDGES[sums.index(min(sums))]


def held_out_error(weight: Tensor, fit: Tensor, fitted: InputStatistics, held_out: InputStatistics) -> float:
    """Squared relative output error on held-out inputs, with the bias that the fitted inputs' mean asks for."""
    left = weight.double() - fit.double()
    gap = left @ (held_out.mean - fitted.mean)
    whole = float(((weight.double() @ held_out.covariance) * weight.double()).sum())
    error = float(((left @ held_out.covariance) * left).sum() + gap.square().sum())
    return error / whole if whole > 0 else 0.0
