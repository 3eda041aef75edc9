"""Converts a bundle to weights in another precision, and measures how far the answers move."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..models.bundle.bundle import load_bundle, save_bundle
from ..models.bundle.config import BundleConfig
from ..models.bundle.provenance import made_from
from ..models.bundle.storage import as_stored
from ..models.divergence import answers, divergence
from ..models.report import Measured
from .quantisation import INT8_LIMIT, choose_storage

NOT_MEASURED = "not measured"
"""Stands in the record in place of a figure."""

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


def measured_change(reference: nn.Module, model: nn.Module, batches: Batches) -> tuple[Measured, Measured]:
    """Measure `reference` and `model` on images that are read once and need not fit in memory; at least one image."""
    results = [(answers(reference, [images]), answers(model, [images]), classes) for images, classes in batches]
    before, after = torch.cat([result[0] for result in results]), torch.cat([result[1] for result in results])
    known = [classes for _, _, classes in results if classes is not None]
    targets = torch.cat(known) if len(known) == len(results) else None
    return _figures(before, before, targets), _figures(before, after, targets)


def _figures(reference: Tensor, outputs: Tensor, targets: Tensor | None) -> Measured:
    """The figures of a model that gave these log-probabilities (images, classes)."""
    compared = divergence(reference, outputs)

    def top(best: int) -> float | None:
        if targets is None or outputs.shape[1] < best:
            return None
        hits = (outputs.topk(best).indices == targets.to(outputs.device).unsqueeze(1)).any(1)
        return 100 * float(hits.to(torch.float64).mean())

    top5 = top(5) if outputs.shape[1] > 5 else None
    kl = max(0.0, compared.kl)
    return Measured(top1=top(1), top5=top5, agreement=compared.agreement, kl=kl, images=compared.images)


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
