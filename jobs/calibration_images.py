"""Finds and reads the images of a compression: to calibrate, to train a distillation on, and its held-out ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..loaders.dataset.evaluation import PreparedImages
from ..loaders.dataset.training import Sample
from ..loaders.errors import InputError
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


@dataclass(frozen=True)
class ImageSet:
    """Normalised images (n, 3, H, W), their classes (n,) where they are known, and files that could not be read."""

    pixels: Tensor
    targets: Tensor | None
    skipped: Mapping[Path, InputError]

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def batches(self) -> tuple[Tensor, ...]:
        return self.pixels.split(BATCH)


def read_images(samples: Sequence[Sample], config: BundleConfig, name: str, progress: Progress) -> ImageSet:
    """Read images, prepared as for serving; notes those that cannot be read."""
    prepared = PreparedImages(samples, PreprocessSpec.from_dict(config.preprocess), BATCH, cache_bytes=0)
    batches, targets = list[Tensor](), list[Tensor]()
    for images, classes in prepared:
        batches.append(images)
        targets += [] if classes is None else [classes]
        progress.step(f"reading {name} images", sum(map(len, batches)), len(samples))
    note_skipped(progress, prepared.skipped)
    pixels = torch.cat(batches) if batches else torch.empty(0)
    return ImageSet(pixels, torch.cat(targets) if targets else None, prepared.skipped)


def calibration_data(job: CompressJob, progress: Progress) -> CalibrationData | None:
    """Read evenly spaced images of the calibration folder, prepared as for serving."""
    folder = job.calibration_folder
    if folder is None:
        return None
    config = read_config(job.source)
    samples = calibration_samples(job, folder, config)
    images = read_images(samples, config, "calibration", progress)
    if len(images) < MIN_IMAGES:
        raise DataError(
            f"DATA {folder}: {len(images)} of {len(samples)} images can be read, "
            f"calibration needs at least {MIN_IMAGES}"
        )
    use = data_use("calibration", folder, len(images), images.skipped)
    return CalibrationData(images.pixels, images.targets, use)


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
