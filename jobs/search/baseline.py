"""The baseline of a search: the dense model, its calibration and held-out images, and its answers to the latter."""

import platform
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ...inference.device import usable_cores
from ...models import load_bundle
from ...models.bundle.provenance import library_versions
from ...models.bundle.reading import read_single_label
from ...models.divergence import answers
from ...models.progress import Progress
from ..calibration_images import folder_samples, read_images
from ..dataset import DataError, spaced
from ..train_split import digest
from .job import MIN_IMAGES, SearchJob


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
        read_single_label(job.source, "compress")
        self._source = job.source
        self.model, self.config = load_bundle(job.source)
        samples = spaced(folder_samples(job.images, self.config), job.max_images)
        self.samples = samples[::2]
        self.calibration = read_images(self.samples, self.config, "the calibration", progress)
        self.held_out = read_images(samples[1::2], self.config, "the held-out", progress)
        read = len(self.calibration) + len(self.held_out)
        if read < MIN_IMAGES:
            raise DataError(
                f"DATA {job.images}: {read} of {len(samples)} images can be read, a search needs {MIN_IMAGES}"
            )

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

    def belongs_to(self, job: SearchJob) -> dict[str, Any]:
        """All that decides the results of a search."""
        return {
            "model": self.config.version,
            "images": digest(job.images, self.samples),
            "batches": job.batches,
            "backends": job.backends,
            "keep_weights": job.keep_weights,  # they count for the bytes
            "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {usable_cores()} cores",
            "versions": library_versions(),
        }
