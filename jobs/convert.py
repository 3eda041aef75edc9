"""Converts a bundle and measures the change on a folder of images: what `milkweed convert` does."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..loaders.dataset.evaluation import PreparedImages
from ..loaders.preprocess.spec import PreprocessSpec
from ..models import read_config
from ..models.compress.conversion import ConvertReport, convert_model
from ..models.compress.quantisation import INT8_LIMIT
from .calibration_images import BATCH, folder_samples, name_skipped, spaced
from .compress_request import Progress
from .dataset import DataError

SAMPLE_IMAGES = 64
"""That int8 is tried on, layer by layer."""


@dataclass(frozen=True, kw_only=True)
class ConvertJob:
    """What to convert, and on which images to measure it.

    Args:
        storage, int8_limit: as in `choose_storage`.
        images: folder of images, whose classes are not looked for.
        evaluate: folder of labelled images to measure accuracy on.
        limit: of images to measure on, evenly spaced.
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


def convert(run: ConvertJob, hooks: Progress) -> ConvertReport:
    """Convert as asked; measured on `evaluate`, else on `images`, else not.

    int8 is tried on `images`, else on `evaluate`, else on made images.

    Raises:
        BundleError, DataError, ValueError: one line that says what is wrong.
    """
    measured, tried = run.evaluate or run.images, run.images or run.evaluate
    batches = None if measured is None else _Batches(run, measured, hooks, "measuring", run.limit)
    sample = None if tried is None else _Batches(run, tried, hooks, "trying int8", SAMPLE_IMAGES)
    return convert_model(
        run.source,
        run.out,
        run.storage,
        limit=run.int8_limit,
        sample=None if sample is None else (images for images, _ in sample),
        batches=batches,
        folder=None if measured is None else measured.resolve().name,
        device=run.device,
        overwrite=run.overwrite,
    )


class _Batches:
    """Batches of a folder's images, read as they are gone through; says what it skipped at the end.

    Raises:
        DataError: no such folder, classes that fit no label where they are wanted, or nothing that can be read.
    """

    def __init__(self, run: ConvertJob, folder: Path, hooks: Progress, step: str, most: int | None) -> None:
        config = read_config(run.source)
        samples = folder_samples(folder, config, labelled=folder == run.evaluate)
        if folder != run.evaluate:
            samples = [(path, None) for path, _ in samples]
        samples = spaced(samples, most or len(samples))
        self._prepared = PreparedImages(samples, PreprocessSpec.from_dict(config.preprocess), BATCH, cache_bytes=0)
        self._folder, self._hooks, self._step, self._device = folder, hooks, step, run.device

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        samples, skipped, done = self._prepared.samples, self._prepared.skipped, 0
        for images, targets in self._prepared:
            yield images.to(self._device), targets
            done += len(images)
            if self._hooks.step:
                self._hooks.step(self._step, done + len(skipped), len(samples))
        name_skipped(skipped, self._hooks)
        if not done:
            raise DataError(f"DATA {self._folder}: none of {len(samples)} images can be read")
