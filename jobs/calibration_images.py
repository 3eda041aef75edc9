"""Finds the images of a compression: to calibrate, to train a distillation on, and its held-out ones."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..loaders.dataset.evaluation import PreparedImages
from ..loaders.dataset.training import Sample
from ..loaders.preprocess.spec import PreprocessSpec
from ..models import BundleConfig, read_config
from ..models.compress import CalibrationData
from ..models.compress.calibration import MIN_IMAGES
from ..models.progress import Progress
from .compress_job import CompressJob
from .dataset import DataError, hold_out, image_files, labelled_images, spaced
from .progress import note_skipped
from .train_report import data_use

BATCH = 32
HELD_OUT_FRACTION = 0.1
MIN_HELD_OUT = 8


def calibration_data(job: CompressJob, progress: Progress) -> CalibrationData | None:
    """Read evenly spaced images of the calibration folder, prepared as for serving."""
    folder = job.calibration_folder
    if folder is None:
        return None
    config = read_config(job.source)
    samples = calibration_samples(job, folder, config)
    prepared = PreparedImages(samples, PreprocessSpec.from_dict(config.preprocess), BATCH, cache_bytes=0)
    pixels: list[Tensor] = []
    targets: list[Tensor] = []
    for images, classes in prepared:
        pixels.append(images)
        if classes is not None:
            targets.append(classes)
        progress.step("reading calibration images", sum(map(len, pixels)), len(samples))
    use = data_use("calibration", folder, len(samples) - len(prepared.skipped), prepared.skipped)
    note_skipped(progress, prepared.skipped)
    read = sum(map(len, pixels))
    if read < MIN_IMAGES:
        raise DataError(
            f"DATA {folder}: {read} of {len(samples)} images can be read, calibration needs at least {MIN_IMAGES}"
        )
    return CalibrationData(torch.cat(pixels), torch.cat(targets) if targets else None, use)


def calibration_samples(job: CompressJob, folder: Path, config: BundleConfig) -> Sequence[Sample]:
    """Choose evenly spaced images of the folder, none that a distillation from the same folder will hold out."""
    samples = folder_samples(folder, config)
    if job.recover is not None and folder.resolve() == job.recover.resolve():
        samples = split_held_out(samples, folder)[0]
    return spaced(samples, job.calibration_images)


def folder_samples(folder: Path, config: BundleConfig, *, labelled: bool = False) -> list[Sample]:
    """Find the images under a folder, with their classes where the layout says the model's classes.

    Raises:
        DataError: there are no images, or `labelled` is set and classes fit no label.
    """
    try:
        return list(labelled_images(folder, config.labels).samples)
    except DataError:
        if labelled:
            raise
        return [Sample(path, None) for path in image_files(folder)]


def split_held_out(samples: Sequence[Sample], folder: Path) -> tuple[list[Sample], list[Sample]]:
    """Split the images into those to train on and a tenth that is held out, the same for every seed."""
    count = max(MIN_HELD_OUT, round(HELD_OUT_FRACTION * len(samples)))
    if len(samples) < 2 * MIN_HELD_OUT:
        raise DataError(f"DATA {folder}: {len(samples)} images, a distillation needs at least {2 * MIN_HELD_OUT}")
    return hold_out(samples, count)
