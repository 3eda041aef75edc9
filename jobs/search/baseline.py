"""The baseline of a search: the dense model, its calibration and held-out images, and its answers to the latter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from ...loaders.dataset.evaluation import PreparedImages
from ...loaders.dataset.training import Sample
from ...loaders.errors import InputError
from ...loaders.preprocess.spec import PreprocessSpec
from ...models import BundleConfig, load_bundle
from ...models.divergence import answers
from ...models.progress import Progress
from ..calibration_images import BATCH, folder_samples
from ..dataset import DataError, spaced
from ..progress import note_skipped
from .job import MIN_IMAGES, SearchJob


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


class Baseline:
    """The dense model that a search starts from and compares with.

    Args:
        samples: the files of the calibration images.
        calibration: images that calibrate and train.
        held_out: images that nothing was fitted to.

    Raises:
        BundleError, DataError: a bundle or images that cannot be used.
    """

    def __init__(self, job: SearchJob, progress: Progress) -> None:
        self._source = job.source
        self.model, self.config = load_bundle(job.source)
        samples = spaced(folder_samples(job.images, self.config), job.max_images)
        self.samples = samples[::2]
        self.calibration, self.held_out = _halves(job, samples, self.config, progress)

    @property
    def size(self) -> int:
        """Side of the model's input, px."""
        return int(self.config.preprocess["size"])

    @cached_property
    def dense(self) -> Tensor:
        """The dense model's log-probabilities for the held-out images.

        Raises:
            DataError: they are all the same, so that no other model could be told from it.
        """
        dense = answers(self.model, self.held_out.batches)
        if not torch.isfinite(dense).all():
            raise DataError("the dense model's answers are not finite numbers: there is nothing to compare with")
        if float((dense - dense[0]).abs().max()) < 1e-6:
            raise DataError(
                f"the dense model's answers to {len(dense)} images are all the same: give images that differ"
            )
        return dense

    def fresh_model(self) -> nn.Module:
        """Return a copy of the dense model."""
        model, _ = load_bundle(self._source)
        return model


def _halves(
    job: SearchJob, samples: Sequence[Sample], config: BundleConfig, progress: Progress
) -> tuple[ImageSet, ImageSet]:
    """Read the images; every second one calibrates, the others are held out."""
    halves = []
    for first, name in ((0, "calibration"), (1, "held-out")):
        prepared = PreparedImages(samples[first::2], PreprocessSpec.from_dict(config.preprocess), BATCH, cache_bytes=0)
        pixels, targets = [], []
        for images, classes in prepared:
            pixels.append(images)
            targets += [] if classes is None else [classes]
            progress.step(f"reading the {name} images", sum(map(len, pixels)), len(prepared.samples))
        note_skipped(progress, prepared.skipped)
        halves.append((pixels, targets, prepared.skipped))
    read = sum(len(images) for pixels, _, _ in halves for images in pixels)
    if read < MIN_IMAGES:
        raise DataError(f"DATA {job.images}: {read} of {len(samples)} images can be read, a search needs {MIN_IMAGES}")
    calibration, held_out = (ImageSet(torch.cat(p), torch.cat(t) if t else None, s) for p, t, s in halves)
    return calibration, held_out
