"""Splits images into those to train on and those to measure on; the fingerprint names all that decides a run."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..loaders.dataset.training import Sample
from ..models import BundleConfig, read_config
from ..models.bundle.labels import Label
from .dataset import DataError, hold_out, labelled_images
from .train_job import TrainJob


def split_samples(job: TrainJob, labels: Sequence[Label]) -> tuple[list[Sample], list[Sample]]:
    """Find the images to train on and those to measure on, with their classes.

    Raises:
        DataError: a folder has no images, classes fit no label, or the fraction leaves nothing.
    """
    samples = _samples(job.data, labels)
    if job.held_out is not None:
        return samples, _samples(job.held_out, labels)
    count = round(job.held_out_fraction * len(samples))
    if not 0 < count < len(samples):
        raise DataError(
            f"DATA {job.data}: {job.held_out_fraction:g} of {len(samples)} images leaves "
            f"{len(samples) - count} to train on and {count} to measure on"
        )
    # The seed of the run is not used, so that runs of several seeds are measured on the same images.
    return hold_out(samples, count)


def fingerprint(
    job: TrainJob, config: BundleConfig, training: Sequence[Sample], held_out: Sequence[Sample]
) -> dict[str, Any]:
    """Name all that decides the result beside the recipe; a run only uses saved states of the same fingerprint."""
    return {
        "arch": config.arch,
        "arch_args": dict(config.arch_args),
        "structure": {name: layer.to_dict() for name, layer in config.structure.items()},
        "preprocess": dict(config.preprocess),
        "labels": [label.id for label in config.labels],
        "from": _version(job.start_bundle),
        "teacher": _version(job.teacher),
        "distillation": [job.temperature, job.label_weight] if job.teacher else None,
        "schedule": job.schedule,
        "s2d_epoch": job.s2d_epoch,
        "augmentation": asdict(job.augmentation),
        "keep_best": job.keep_best,
        "patience": job.patience,
        "data": digest(job.data, training),
        "held out": digest(job.held_out or job.data, held_out),
    }


def plain_twin(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fingerprint of the run with the plain schedule whose first epochs are the same."""
    return {**values, "schedule": "plain", "s2d_epoch": None}


def _samples(root: Path, labels: Sequence[Label]) -> list[Sample]:
    return list(labelled_images(root, labels).samples)


def _version(bundle: Path | None) -> str | None:
    return None if bundle is None else read_config(bundle).version


def digest(root: Path, samples: Sequence[Sample]) -> str:
    """Hash the names, sizes and classes of the images into a short text."""
    digest = hashlib.sha256()
    for path, target in samples:
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0{target}\0".encode())
    return f"{len(samples)} images, {digest.hexdigest()[:16]}"
