"""The model that is searched for, the images that fit and that judge, and the dense model's answers to them."""

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
class Images:
    """Normalised images (n, 3, H, W), their classes (n,) where they are known, and files that could not be read."""

    pixels: Tensor
    targets: Tensor | None
    skipped: Mapping[Path, InputError]

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def batches(self) -> tuple[Tensor, ...]:
        return self.pixels.split(BATCH)


class Subject:
    """What a search works on.

    Args:
        samples: the files of the fitting images.
        fit: images that calibrate and train.
        judge: images that nothing was fitted to.

    Raises:
        BundleError, DataError: a bundle or images that cannot be used.
    """

    def __init__(self, job: SearchJob, progress: Progress) -> None:
        self._source = job.source
        self.model, self.config = load_bundle(job.source)
        samples = spaced(folder_samples(job.images, self.config), job.max_images)
        self.samples = samples[::2]
        self.fit, self.judge = _halves(job, samples, self.config, progress)

    @property
    def size(self) -> int:
        """Side of the model's input, px."""
        return int(self.config.preprocess["size"])

    @cached_property
    def dense(self) -> Tensor:
        """The dense model's log-probabilities for the judging images.

        Raises:
            DataError: they are all the same, so that no other model could be told from it.
        """
        found = answers(self.model, self.judge.batches)
        if not torch.isfinite(found).all():
            raise DataError("the dense model's answers are not finite numbers: there is nothing to compare with")
        if float((found - found[0]).abs().max()) < 1e-6:
            raise DataError(
                f"the dense model's answers to {len(found)} images are all the same: give images that differ"
            )
        return found

    def fresh_model(self) -> nn.Module:
        """Return a copy of the dense model."""
        model, _ = load_bundle(self._source)
        return model


def _halves(
    job: SearchJob, samples: Sequence[Sample], config: BundleConfig, progress: Progress
) -> tuple[Images, Images]:
    """Read the images; every second one fits, the others judge."""
    halves = []
    for first, name in ((0, "fitting"), (1, "judging")):
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
    fit, judge = (Images(torch.cat(p), torch.cat(t) if t else None, s) for p, t, s in halves)
    return fit, judge
