"""Chooses how a bundle's file holds each layer: int8 where the layer's outputs bear it, else two bytes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from ..models.bundle.config import FALLBACK, STORAGES
from ..models.bundle.golden import golden_images
from ..models.bundle.storage import as_stored, storable_weights
from ..models.hooks import hooked

INT8_LIMIT = 0.02
"""Relative error of a layer's outputs up to which its weights become int8.

DeiT-Tiny's layers are off by 0.015 at most (`milkweed convert`); a layer that is off by more has outliers.
"""

MADE_NOISE = 6


@dataclass(frozen=True)
class Quantisation:
    """The precision of each of a model's weights, and the errors that it causes in the layers.

    Args:
        weights: the storage that was asked for, one of STORAGES.
        storage: precision by layer, as `save_bundle` takes it.
        limit: as INT8_LIMIT.
        errors: int8's error by layer, whether int8 was chosen or not; None where no image reached the layer.
        tried_on: the images of these errors, in words.
    """

    weights: str
    storage: Mapping[str, str] = field(default_factory=dict)
    limit: float = INT8_LIMIT
    errors: Mapping[str, float | None] = field(default_factory=dict)
    tried_on: str = ""

    @property
    def kept(self) -> dict[str, float | None]:
        """Layers that could not be int8, and their errors."""
        return {name: error for name, error in self.errors.items() if self.storage[name] != "int8"}

    def record(self) -> dict[str, Any]:
        """The storage as plain data; for int8 also the limit, the largest error within it, and the layers beyond."""
        if self.weights != "int8":
            return {"weights": self.weights}
        kept = self.kept
        errors = [error for name, error in self.errors.items() if name not in kept and error is not None]
        record = {
            "limit": self.limit,
            "largest_error": round(max(errors), 6) if errors else None,
            "tried_on": self.tried_on,
            f"kept_{FALLBACK}": {name: None if error is None else round(error, 6) for name, error in kept.items()},
        }
        return {"weights": self.weights, "int8": record}


def choose_storage(
    model: nn.Module,
    weights: str,
    batches: Iterable[Tensor] | None,
    size: int,
    *,
    limit: float = INT8_LIMIT,
) -> Quantisation:
    """Choose the precision of each layer of a model.

    Args:
        model: a model as `load_bundle` gives it.
        weights: one of STORAGES.
        batches: normalised images (B, 3, size, size) that int8 is tried on; None takes made ones.
        size: side of the model's images, px.

    Raises:
        ValueError: an unknown storage, an impossible limit, or a weight that is not finite.
    """
    if weights not in STORAGES:
        raise ValueError(f"storage {weights!r} must be one of {', '.join(STORAGES)}")
    if not (isfinite(limit) and limit >= 0):
        raise ValueError(f"int8 limit {limit} must be a number from 0 on")
    if weights == "float32":
        return Quantisation(weights)
    if weights != "int8":
        return Quantisation(weights, dict.fromkeys(storable_weights(model), weights))
    made = batches is None
    errors, count = int8_errors(model, [made_images(model, size)] if batches is None else batches)
    storage = {name: "int8" if error is not None and error <= limit else FALLBACK for name, error in errors.items()}
    return Quantisation(weights, storage, limit, errors, f"{count} {'made ' if made else ''}images")


def int8_errors(model: nn.Module, batches: Iterable[Tensor]) -> tuple[dict[str, float | None], int]:
    """Measure the errors that int8 weights cause in the outputs of each layer, with the exact model's inputs.

    Returns:
        By layer, the norm of the outputs' error relative to that of the outputs without their bias, over all images,
        or None where there is no such number; and the number of images.
    """
    names = storable_weights(model)
    rounded = as_stored(model, dict.fromkeys(names, "int8"))
    sums = {name: _Sums(model.get_submodule(name), rounded.get_submodule(name)) for name in names}
    count = 0
    with torch.inference_mode(), hooked(model, names, lambda name, inputs, output: sums[name].add(inputs, output)):
        for images in batches:
            model(images)
            count += len(images)
    return {name: total.error for name, total in sums.items()}, count


def made_images(model: nn.Module, size: int) -> Tensor:
    """The golden images and noise, (n, 3, size, size), to run a model on where there are no photographs.

    They show how much a layer's outputs are off, which hardly depends on the images; they say nothing on accuracy.
    """
    noise = torch.randn(MADE_NOISE, 3, size, size, generator=torch.Generator().manual_seed(0))
    return torch.cat([torch.from_numpy(golden_images(size)), noise]).to(next(model.parameters()).device)


class _Sums:
    """Adds up squares of a layer's outputs and of their difference from its rounded twin's."""

    def __init__(self, layer: nn.Module, twin: nn.Module) -> None:
        self.layer, self.twin, self.off, self.whole, self.seen = layer, twin, 0.0, 0.0, False

    def add(self, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        bias, plain = self.layer.bias, output
        if isinstance(bias, Tensor):
            plain = output - (bias.view(-1, 1, 1) if isinstance(self.layer, nn.Conv2d) else bias)
        self.off += float((self.twin(*inputs) - output).double().square().sum())
        self.whole += float(plain.double().square().sum())
        self.seen = True

    @property
    def error(self) -> float | None:
        if not self.seen or not isfinite(self.off + self.whole):
            return None
        return float((self.off / self.whole) ** 0.5) if self.whole else 0.0
