"""Converts a bundle to weights in another precision, and measures how far the answers move."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..bundle.bundle import load_bundle, save_bundle
from ..bundle.config import BundleConfig
from ..bundle.provenance import made_from
from ..bundle.storage import as_stored
from ..report import Measured
from .evaluator import measured_change
from .quantisation import INT8_LIMIT, NOT_MEASURED, choose_storage

Batches = Iterable[tuple[Tensor, Tensor | None]]
"""Normalised images (B, 3, H, W), and their classes (B,) where they are known."""


@dataclass(frozen=True)
class ConvertReport:
    """The result of `convert_model`.

    Args:
        source, config: the configs of the bundles before and after.
        before, after: both models on the same images; agreement and KL are with the model before. None without images.
    """

    source: BundleConfig
    config: BundleConfig
    before: Measured | None
    after: Measured | None
    seconds: float


def convert_model(
    source: str | Path,
    out: str | Path,
    weights: str,
    *,
    limit: float = INT8_LIMIT,
    sample: Iterable[Tensor] | None = None,
    batches: Batches | None = None,
    folder: str | None = None,
    device: torch.device | str = "cpu",
    overwrite: bool = False,
) -> ConvertReport:
    """Read the bundle `source`, write it as `out` with its weights in another precision. Its layers stay as they are.

    Accuracy measured before moves to the provenance; what is measured now takes its place.

    Args:
        weights: one of `config.STORAGES`.
        limit: relative error of a layer's outputs up to which it becomes int8.
        sample: normalised images (B, 3, H, W) that int8 is tried on; None takes made ones.
        batches: images that both models are measured on; None measures nothing.
        folder: name of their folder, for the record.

    Raises:
        BundleError: a bundle that cannot be read or written.
        ValueError: `weights` or `limit` is none, or weights that the precision cannot hold; names the tensor.
    """
    start = time.perf_counter()
    model, config = load_bundle(source)
    model = model.to(device)
    quantisation = choose_storage(model, weights, sample, int(config.preprocess["size"]), limit=limit)
    stored = as_stored(model, quantisation.storage)
    before, after = (None, None) if batches is None else measured_change(model, stored, batches)
    record = {
        **quantisation.record(),
        **({"converted_from": dict(Counter(config.storage.values()))} if config.storage else {}),
        **_measured(before, after, folder),
    }
    arguments = {"storage": weights, **({"int8_limit": limit} if weights == "int8" else {})}
    config_after = made_from(config, "convert", arguments, time.perf_counter() - start, metrics={"storage": record})
    saved = save_bundle(out, model.cpu(), config_after, overwrite=overwrite, storage=quantisation.storage)
    return ConvertReport(config, saved, before, after, time.perf_counter() - start)


def _measured(before: Measured | None, after: Measured | None, folder: str | None) -> dict[str, Any]:
    """The measured figures for the record; those that need labels are left out where there are none."""
    if before is None or after is None:
        return {"accuracy": NOT_MEASURED}
    record: dict[str, Any] = {"images": {"folder": folder, "count": after.images}}
    if before.top1 is None:
        record["accuracy"] = NOT_MEASURED
    else:
        record["before"] = {"top1": before.top1, "top5": before.top5}
        record["after"] = {"top1": after.top1, "top5": after.top5}
    return {**record, "agreement": after.agreement, "kl": after.kl}
