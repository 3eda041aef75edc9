"""Which images a run trains on and which it is measured on, and what names both and all else that decides it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..loaders.dataset.counter_rng import epoch_order
from ..loaders.dataset.training import Sample
from ..models import BundleConfig, read_config
from ..models.bundle.labels import Label
from .dataset import DataError, labelled_images
from .train_request import TrainJob


def split_samples(request: TrainJob, labels: Sequence[Label]) -> tuple[list[Sample], list[Sample]]:
    """Images to train on and to measure on, with their classes.

    Raises:
        DataError: a folder without images, classes that fit no label, or a fraction that leaves nothing.
    """
    samples = _samples(request.data, labels)
    if request.held_out is not None:
        return samples, _samples(request.held_out, labels)
    count = round(request.held_out_fraction * len(samples))
    if not 0 < count < len(samples):
        raise DataError(
            f"DATA {request.data}: {request.held_out_fraction:g} of {len(samples)} images leaves "
            f"{len(samples) - count} to train on and {count} to measure on"
        )
    # not by the run's seed: runs of several seeds are measured on the same images
    taken = set(epoch_order(0, 0, len(samples))[:count].tolist())
    training = [sample for place, sample in enumerate(samples) if place not in taken]
    return training, [samples[place] for place in sorted(taken)]


def fingerprint(
    request: TrainJob, config: BundleConfig, training: Sequence[Sample], held_out: Sequence[Sample]
) -> dict[str, Any]:
    """All that decides the result beside the recipe, as plain data: a saved state must be of the same."""
    return {
        "arch": config.arch,
        "arch_args": dict(config.arch_args),
        "structure": {name: layer.to_dict() for name, layer in config.structure.items()},
        "preprocess": dict(config.preprocess),
        "labels": [label.id for label in config.labels],
        "from": _version(request.start_bundle),
        "teacher": _version(request.teacher),
        "distillation": [request.temperature, request.hard_share] if request.teacher else None,
        "schedule": request.schedule,
        "s2d_epoch": request.s2d_epoch,
        "augmentation": asdict(request.augmentation),
        "keep_best": request.keep_best,
        "patience": request.patience,
        "data": digest(request.data, training),
        "held out": digest(request.held_out or request.data, held_out),
    }


def plain_twin(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint of the run with the plain schedule that begins like this one."""
    return {**values, "schedule": "plain", "s2d_epoch": None}


def _samples(root: Path, labels: Sequence[Label]) -> list[Sample]:
    return [(sample.path, sample.target) for sample in labelled_images(root, labels).samples]


def _version(bundle: Path | None) -> str | None:
    return None if bundle is None else read_config(bundle).version


def digest(root: Path, samples: Sequence[Sample]) -> str:
    """Names, sizes and classes of the images, as one short text."""
    digest = hashlib.sha256()
    for path, target in samples:
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0{target}\0".encode())
    return f"{len(samples)} images, {digest.hexdigest()[:16]}"
