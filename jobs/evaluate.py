"""Measures a model's accuracy on labelled images, through the same Pipeline that answers requests."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..inference.pipeline import Pipeline
from ..inference.results import BatchResult, ImageResult, TopClasses
from ..loaders.dataset.training import Sample
from ..loaders.errors import InputError
from ..models.progress import SILENT, Progress
from .dataset import read_image
from .progress import note_skipped


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found. Accuracy is over the images that were answered.

    Args:
        images: how many were answered.
        correct1, correct5: how many of them have their class as the best answer, and among the best five.
        num_classes: classes of the model; top-5 says nothing where there are no more than five.
        skipped: images that could not be read, and why.
        seconds: reading, decoding and forward together.
        decode_seconds, forward_seconds: the parts of `seconds` spent in the two stages.
        scores, right: of the best class of each answered image its score, and whether it is the image's (images,).
    """

    images: int
    correct1: int
    correct5: int
    num_classes: int
    skipped: Mapping[Path, InputError]
    seconds: float
    decode_seconds: float
    forward_seconds: float
    scores: NDArray[np.float64]
    right: NDArray[np.bool_]

    @property
    def top1(self) -> float | None:
        """Percent; None where no image was answered."""
        return 100 * self.correct1 / self.images if self.images else None

    @property
    def top5(self) -> float | None:
        """Percent; None where no image was answered or the model has no more than five classes."""
        return 100 * self.correct5 / self.images if self.images and self.num_classes > 5 else None

    @property
    def images_per_second(self) -> float:
        """Answered images a second."""
        return self.images / self.seconds if self.seconds > 0 else 0.0


def evaluate(
    pipeline: Pipeline,
    samples: Sequence[Sample],
    *,
    max_image_bytes: int,
    batch_size: int | None = None,
    progress: Progress = SILENT,
) -> Evaluation:
    """Classify every sample and count the right answers.

    Args:
        max_image_bytes: a larger file is not read.
        batch_size: images handed to the pipeline at once; answers do not depend on it.

    Raises:
        RuntimeError: the model failed on an image that could be read.
    """
    size = batch_size or pipeline.default_batch_size
    correct1 = correct5 = answered = 0
    scores, right = list[float](), list[bool]()
    skipped: dict[Path, InputError] = {}
    progress.step("evaluate", 0, len(samples))
    decode_seconds = forward_seconds = 0.0
    started = time.perf_counter()
    for first in range(0, len(samples), size):
        part = samples[first : first + size]
        outcomes, result = _classify(pipeline, part, max_image_bytes)
        decode_seconds += result.decoded - result.started
        forward_seconds += result.forwarded - result.decoded
        for sample, outcome in zip(part, outcomes, strict=True):
            if isinstance(outcome, TopClasses):
                answered += 1
                scores.append(outcome.confidence)
                right.append(outcome.best == sample.target)
                correct1 += right[-1]
                correct5 += sample.target in outcome.index
            elif isinstance(outcome, InputError):
                skipped[sample.path] = outcome
            else:
                raise RuntimeError(f"the model failed on {sample.path}: {outcome.message}")
        progress.step("evaluate", first + len(part), len(samples))
    seconds = time.perf_counter() - started
    note_skipped(progress, skipped)
    return Evaluation(
        answered,
        correct1,
        correct5,
        pipeline.num_classes,
        skipped,
        seconds,
        decode_seconds,
        forward_seconds,
        np.array(scores),
        np.array(right, bool),
    )


def _classify(pipeline: Pipeline, part: Sequence[Sample], max_bytes: int) -> tuple[list[ImageResult], BatchResult]:
    """Classify one batch; the outcomes are in order, those of files that could not be read among them."""
    contents = [read_image(sample.path, max_bytes) for sample in part]
    images = [content for content in contents if isinstance(content, bytes)]
    top_k = min(5, pipeline.num_classes)
    result = pipeline.run(images, [None] * len(images), [top_k] * len(images))
    answers = iter(result.outcomes)
    return [next(answers) if isinstance(content, bytes) else content for content in contents], result
