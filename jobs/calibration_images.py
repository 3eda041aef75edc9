"""The images of a compression: those that calibrate, those that recover, and those that a recovery is judged by."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..loaders.dataset.counter_rng import epoch_order
from ..loaders.dataset.evaluation import PreparedImages
from ..loaders.dataset.training import Sample
from ..loaders.errors import InputError
from ..loaders.preprocess.spec import PreprocessSpec
from ..models import BundleConfig, read_config
from ..models.compress import CalibrationData
from ..models.compress.calibration import MIN_IMAGES
from .compress_request import CompressJob, Progress
from .dataset import DataError, find_images, labelled_images
from .skipped import skipped_lines
from .train_report import data_use

BATCH = 32
HELD_OUT_FRACTION = 0.1
MIN_HELD_OUT = 8


def calibration_data(run: CompressJob, hooks: Progress) -> CalibrationData | None:
    """The images of the calibration folder that can be read, evenly spaced, prepared as for serving."""
    folder = run.calibration_folder
    if folder is None:
        return None
    config = read_config(run.source)
    samples = calibration_samples(run, folder, config)
    prepared = PreparedImages(samples, PreprocessSpec.from_dict(config.preprocess), BATCH, cache_bytes=0)
    pixels: list[Tensor] = []
    targets: list[Tensor] = []
    for images, classes in prepared:
        pixels.append(images)
        if classes is not None:
            targets.append(classes)
        if hooks.step:
            hooks.step("reading calibration images", sum(map(len, pixels)), len(samples))
    use = data_use("calibration", folder, len(samples) - len(prepared.skipped), prepared.skipped)
    name_skipped(prepared.skipped, hooks)
    read = sum(map(len, pixels))
    if read < MIN_IMAGES:
        raise DataError(
            f"DATA {folder}: {read} of {len(samples)} images can be read, calibration needs at least {MIN_IMAGES}"
        )
    return CalibrationData(torch.cat(pixels), torch.cat(targets) if targets else None, use)


def calibration_samples(run: CompressJob, folder: Path, config: BundleConfig) -> list[Sample]:
    """Evenly spaced images of the folder; not those that a recovery from the same folder will be judged by."""
    samples = folder_samples(folder, config)
    if run.recover is not None and folder.resolve() == run.recover.resolve():
        samples = split_held_out(samples, folder)[0]
    return spaced(samples, run.calibration_images)


def folder_samples(folder: Path, config: BundleConfig, *, labelled: bool = False) -> list[Sample]:
    """Images under a folder, with their classes where the layout tells the model's classes.

    Raises:
        DataError: no images, or `labelled` and classes that fit no label.
    """
    try:
        return [(sample.path, sample.target) for sample in labelled_images(folder, config.labels).samples]
    except DataError:
        if labelled:
            raise
        return [(path, None) for path in find_images(folder)[0]]


def split_held_out(samples: Sequence[Sample], folder: Path) -> tuple[list[Sample], list[Sample]]:
    """Images to recover with, and a tenth to judge by, the same for every seed."""
    count = max(MIN_HELD_OUT, round(HELD_OUT_FRACTION * len(samples)))
    if len(samples) < 2 * MIN_HELD_OUT:
        raise DataError(f"DATA {folder}: {len(samples)} images, a recovery needs at least {2 * MIN_HELD_OUT}")
    taken = set(epoch_order(0, 0, len(samples))[:count].tolist())
    training = [sample for place, sample in enumerate(samples) if place not in taken]
    return training, [samples[place] for place in sorted(taken)]


def spaced(samples: list[Sample], most: int) -> list[Sample]:
    """At most so many, evenly spaced."""
    if len(samples) <= most:
        return samples
    return [samples[place * len(samples) // most] for place in range(most)]


def name_skipped(skipped: Mapping[Path, InputError], hooks: Progress) -> None:
    for line in skipped_lines([(path, error.code, error.message) for path, error in skipped.items()]):
        hooks.say(line)
