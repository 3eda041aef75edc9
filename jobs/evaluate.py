"""Accuracy of a model over a folder of labelled images, through the very Pipeline that answers requests."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..inference.pipeline import Pipeline
from ..inference.results import BatchResult, ImageResult, Predictions
from ..loaders.errors import InputError
from .dataset import Sample, read_image


@dataclass(frozen=True)
class Unreadable:
    """An image that got no answer, and why."""

    path: Path
    code: str
    message: str


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found. Accuracy is over the images that were answered.

    Args:
        images: answered.
        correct1, correct5: whose class was the best answer, among the best five.
        num_classes: of the model; top-5 says nothing where there are no more than five.
        unreadable: images without an answer.
        seconds: reading, decoding and forward together.
        decode_seconds, forward_seconds: of those, in the two stages.
    """

    images: int
    correct1: int
    correct5: int
    num_classes: int
    unreadable: tuple[Unreadable, ...]
    seconds: float
    decode_seconds: float
    forward_seconds: float

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
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Classify every sample and count.

    Args:
        max_image_bytes: a larger file is not read.
        batch_size: images handed to the pipeline at once; answers do not depend on it.
        progress: called with images done and in all.

    Raises:
        RuntimeError: the model failed on an image that could be read.
    """
    size = batch_size or pipeline.default_batch_size
    correct1 = correct5 = answered = 0
    unreadable: list[Unreadable] = []
    decode_seconds = forward_seconds = 0.0
    started = time.perf_counter()
    for first in range(0, len(samples), size):
        part = samples[first : first + size]
        outcomes, result = _classify(pipeline, part, max_image_bytes)
        decode_seconds += result.decoded - result.started
        forward_seconds += result.forwarded - result.decoded
        for sample, outcome in zip(part, outcomes, strict=True):
            if isinstance(outcome, Predictions):
                answered += 1
                correct1 += outcome.index[0] == sample.target
                correct5 += sample.target in outcome.index
            elif isinstance(outcome, InputError):
                unreadable.append(Unreadable(sample.path, outcome.code, outcome.message))
            else:
                raise RuntimeError(f"the model failed on {sample.path}: {outcome.message}")
        if progress:
            progress(first + len(part), len(samples))
    seconds = time.perf_counter() - started
    return Evaluation(
        answered,
        correct1,
        correct5,
        pipeline.num_classes,
        tuple(unreadable),
        seconds,
        decode_seconds,
        forward_seconds,
    )


def _classify(pipeline: Pipeline, part: Sequence[Sample], max_bytes: int) -> tuple[list[ImageResult], BatchResult]:
    """One batch: outcomes in order, files that could not be read among them."""
    contents = [read_image(sample.path, max_bytes) for sample in part]
    images = [content for content in contents if isinstance(content, bytes)]
    top_k = min(5, pipeline.num_classes)
    result = pipeline.run(images, [None] * len(images), [top_k] * len(images))
    answers = iter(result.outcomes)
    return [next(answers) if isinstance(content, bytes) else content for content in contents], result
