"""Baseline: the dense model that a compression starts from, and its images: to fit by, to select by, to judge by."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..inference.device import usable_cores
from ..jobs.dataset import DataError, folder_samples, spaced
from ..jobs.progress import note_skipped
from ..jobs.train_split import digest
from ..loaders.dataset.evaluation import PreparedImages
from ..loaders.dataset.training import Sample
from ..loaders.errors import InputError
from ..loaders.preprocess.spec import PreprocessSpec
from ..models import BundleConfig, load_bundle
from ..models.architectures.no_classifier import classifier_name
from ..models.bundle.provenance import library_versions
from ..models.bundle.reading import read_single_label
from ..models.divergence import answers
from ..models.hooks import hooked
from ..models.progress import Progress
from .job import MIN_IMAGES, CompressJob

BATCH, SCREENED_IMAGES = 32, 64
"""Images that are computed at a time; so many at most select."""


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


class Baseline:
    """The dense model, and every second image of the folder to fit by, the others to judge by.

    Of those to fit by, some also select: among token schedules, which fit nothing, and, held out from the statistics
    that layers are fitted to, among structures.

    Args:
        samples: the files of the calibration images.
        training: the files that a training may use: all of the folder but the held-out ones.
        calibration: images that calibrate, train and select.
        held_out: images that judge: nothing was fitted to them, or selected by them before it was measured.

    Raises:
        BundleError, DataError: a bundle or images that cannot be used.
    """

    def __init__(self, job: CompressJob, progress: Progress) -> None:
        read_single_label(job.source, "compress", embeds=True)
        self._source = job.source
        self.model, self.config = load_bundle(job.source)
        files = folder_samples(job.images, self.config)
        samples = spaced(files, job.max_images)
        self.samples, judges = samples[::2], set(samples[1::2])
        self.training = [sample for sample in files if sample not in judges]
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
        dense = self._dense_outputs[0]
        if not torch.isfinite(dense).all():
            raise DataError("the dense model's answers are not finite numbers: there is nothing to compare with")
        if float((dense - dense[0]).abs().max()) < 1e-6:
            raise DataError(
                f"the dense model's answers to {len(dense)} images are all the same: give images that differ"
            )
        return dense

    @property
    def dense_embedding(self) -> Tensor:
        """The dense model's embeddings of the held-out images, (images, width), of width 0 where it has none."""
        return self._dense_outputs[1]

    @cached_property
    def _dense_outputs(self) -> tuple[Tensor, Tensor]:
        """The log-probabilities and the embeddings of the held-out images, by one pass."""
        if self.config.embeds:
            with torch.inference_mode():
                outputs = torch.cat([self.model(images) for images in self.held_out.batches])
            return outputs.log_softmax(-1), outputs
        name, rows = classifier_name(self.model), list[Tensor]()
        with hooked(self.model, () if name is None else (name,), lambda _, inputs, output: rows.append(inputs[0])):
            dense = answers(self.model, self.held_out.batches)
        return dense, torch.cat(rows) if rows else torch.empty(len(dense), 0)

    @property
    def select(self) -> Tensor:
        """The images that schedules and widths are compared by."""
        return self.calibration.pixels[:SCREENED_IMAGES]

    @cached_property
    def dense_on_select(self) -> Tensor:
        """The dense model's log-probabilities for them."""
        return answers(self.model, self.select.split(BATCH))

    def fresh_model(self) -> nn.Module:
        """Return a copy of the dense model."""
        model, _ = load_bundle(self._source)
        return model

    def belongs_to(self, job: CompressJob) -> dict[str, Any]:
        """All that decides the results of a search."""
        return {
            "model": self.config.version,
            "images": digest(job.images, self.training),
            "batches": job.batches,
            "backends": job.backends,
            "keep_weights": job.keep_weights,  # they count for the bytes
            "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {usable_cores()} cores",
            "versions": library_versions(),
        }
