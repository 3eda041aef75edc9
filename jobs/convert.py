"""Does the work of `milkweed convert`: converts a bundle and measures the change on a folder of images."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..loaders.dataset.evaluation import PreparedImages
from ..loaders.dataset.training import Sample
from ..loaders.preprocess.spec import PreprocessSpec
from ..models import read_config
from ..models.bundle.reading import read_single_label
from ..models.progress import SILENT, Progress
from .conversion import ConvertReport, convert_model
from .dataset import DataError, folder_samples, spaced
from .progress import note_skipped
from .quantisation import INT8_LIMIT

BATCH = 32
SAMPLE_IMAGES = 64
"""The number of images that int8 is tried on, layer by layer."""


@dataclass(frozen=True, kw_only=True)
class ConvertJob:
    """What to convert, and on which images to measure it.

    Args:
        storage, int8_limit: as in `choose_storage`.
        images: a folder of images whose classes are not used.
        evaluate: a folder of labelled images to measure accuracy on.
        limit: the most images to measure on, evenly spaced.
    """

    source: Path
    out: Path
    storage: str
    int8_limit: float = INT8_LIMIT
    images: Path | None = None
    evaluate: Path | None = None
    limit: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    overwrite: bool = False


def convert(job: ConvertJob, progress: Progress = SILENT) -> ConvertReport:
    """Convert a bundle; measure the change on `evaluate`, else on `images`, else not at all.

    int8 is tried on `images`, else on `evaluate`, else on generated images.

    Raises:
        BundleError, DataError, ValueError: one line that says what is wrong.
    """
    measured, tried = job.evaluate or job.images, job.images or job.evaluate
    if measured is not None:
        read_single_label(job.source, "a conversion with images")
    batches = None if measured is None else _Batches(job, measured, progress, "measuring", job.limit)
    sample = None if tried is None else _Batches(job, tried, progress, "trying int8", SAMPLE_IMAGES)
    return convert_model(
        job.source,
        job.out,
        job.storage,
        limit=job.int8_limit,
        sample=None if sample is None else (images for images, _ in sample),
        batches=batches,
        folder=None if measured is None else measured.resolve().name,
        device=job.device,
        overwrite=job.overwrite,
    )


class _Batches:
    """Batches of a folder's images, read while they are iterated over; notes what was skipped at the end.

    Raises:
        DataError: no such folder, classes that fit no label where they are wanted, or nothing that can be read.
    """

    def __init__(self, job: ConvertJob, folder: Path, progress: Progress, step: str, most: int | None) -> None:
        config = read_config(job.source)
        samples = folder_samples(folder, config, labelled=folder == job.evaluate)
        if folder != job.evaluate:
            samples = [Sample(path, None) for path, _ in samples]
        chosen = spaced(samples, most or len(samples))
        self._prepared = PreparedImages(chosen, PreprocessSpec.from_dict(config.preprocess), BATCH, cache_bytes=0)
        self._folder, self._progress, self._step, self._device = folder, progress, step, job.device

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        samples, skipped, done = self._prepared.samples, self._prepared.skipped, 0
        for images, targets in self._prepared:
            yield images.to(self._device), targets
            done += len(images)
            self._progress.step(self._step, done + len(skipped), len(samples))
        note_skipped(self._progress, skipped)
        if not done:
            raise DataError(f"DATA {self._folder}: none of {len(samples)} images can be read")
