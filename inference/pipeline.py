"""From encoded bytes to classes: decode, forward, top-k. The server, `evaluate` and `classify` share it."""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..loaders.base import Loader
from ..loaders.decode.batch import BatchLoader
from ..loaders.headers.info import ImageInfo
from ..loaders.thread_clock import thread_cpu_seconds
from .backend import BackendChoice
from .decode_stage import DecodedBatch, DecodeStage
from .device import Device
from .forward import Forward, LanePlan
from .results import BatchResult, ForwardStats, ImageResult, InferenceError, TopClasses

logger = logging.getLogger("milkweed.pipeline")

CLASSIFY_BATCH = 32
"""Images that `classify` decodes and holds at once; an engine brings batches of its own size."""

GPU_BATCH_SIZE = 64
"""Images of a batch that keep a GPU busy."""

TORCH = BackendChoice()


class Pipeline:
    """A loader and a model, joined: `run` is `decode`, then `forward`.

    `decode` may run on one thread while `forward` runs on another, which owns the device; each is called by one thread
    at a time.

    Args:
        forward: the model on its device, warm.
        num_classes: number of the model's classes.
        backend: what computes the forward, and why.
        dense_bytes: what the parameters would take in `dtype` if every layer were dense.
        max_batch_size: images of one forward at most; 0 = as many as keep the device busy.
    """

    def __init__(
        self,
        loader: Loader,
        forward: Forward,
        *,
        num_classes: int,
        backend: BackendChoice = TORCH,
        dense_bytes: int = 0,
        max_batch_size: int = 0,
    ) -> None:
        self.loader, self.forward_stage = loader, forward
        if isinstance(loader, BatchLoader):
            loader.gives_uint8 = forward.takes_uint8
        self.decode_stage = DecodeStage(loader, forward.device, forward.size)
        self.num_classes, self.backend = num_classes, backend
        self.dense_bytes, self.fusion = dense_bytes, forward.fusion
        self.device, self.dtype, self.plan = forward.device, forward.dtype, forward.plan
        self.default_batch_size = default_batch_size(forward.device, forward.plan)
        self.max_batch_size = max_batch_size or self.default_batch_size

    def classify(self, images: Sequence[bytes], top_k: int = 5) -> list[ImageResult]:
        """The best classes of each image or an error, in order.

        Args:
            images: encoded.
            top_k: classes an answer; 1..num_classes.
        """
        if not 1 <= top_k <= self.num_classes:
            raise ValueError(f"top_k is {top_k}: expected 1..{self.num_classes}")
        outcomes: list[ImageResult] = []
        for first in range(0, len(images), CLASSIFY_BATCH):
            part = images[first : first + CLASSIFY_BATCH]
            outcomes += self.run(part, [None] * len(part), [top_k] * len(part)).outcomes
        return outcomes

    def run(self, images: Sequence[bytes], infos: Sequence[ImageInfo | None], top_k: Sequence[int]) -> BatchResult:
        """One batch.

        Args:
            images: encoded.
            infos: the validated header of each image, None where it was not read yet.
            top_k: classes of each answer; 1..num_classes.

        Returns:
            An outcome for each image; one image that fails is an error in its own place.
        """
        return self.forward([self.decode(images, infos)], [top_k])[0]

    def decode(
        self, images: Sequence[bytes], infos: Sequence[ImageInfo | None], sources: Sequence[str | None] | None = None
    ) -> DecodedBatch:
        """The first half of a batch: see `DecodeStage.run`."""
        return self.decode_stage.run(images, infos, sources)

    def forward(
        self,
        batches: Sequence[DecodedBatch],
        top_k: Sequence[Sequence[int]],
        embeds: Sequence[Sequence[bool]] | None = None,
        distributions: Sequence[Sequence[bool]] | None = None,
    ) -> list[BatchResult]:
        """The second half of one batch or several, in one forward.

        Args:
            top_k: for each batch, the number of classes of each answer; 1..num_classes.
            embeds: by batch and image, whether the answer has the image's embedding; None: no answer has.
            distributions: the same of the probabilities of all classes; the best classes are as without.

        Returns:
            A result for each batch; the first one has the statistics of the forward.
        """
        launched = time.perf_counter()
        count = sum(len(batch.ok) for batch in batches)
        answers: list[ImageResult] = []
        padding, cpu_forward, forwarded = 0, 0.0, launched
        cpu_postprocess = thread_cpu_seconds()
        if count:
            computed = self.forward_stage.run(self._pixels(batches))
            padding, cpu_forward = computed.padding, computed.cpu_seconds
            forwarded, cpu_postprocess = time.perf_counter(), thread_cpu_seconds()
            ks = [batch_ks[place] for batch, batch_ks in zip(batches, top_k, strict=True) for place in batch.ok]
            answers = self._answers(computed.probabilities, ks)
            for name, flagged, values in (
                ("embedding", embeds, computed.embeddings),
                ("distribution", distributions, computed.probabilities),
            ):
                if flagged is not None and any(map(any, flagged)):
                    asked = [flags[place] for batch, flags in zip(batches, flagged, strict=True) for place in batch.ok]
                    answers = self._extended(name, answers, values, asked, (forwarded - launched) / count)
        unclaimed = iter(answers)
        outcomes = [_completed(batch, unclaimed) for batch in batches]
        spent = {"forward": cpu_forward, "postprocess": thread_cpu_seconds() - cpu_postprocess}
        finished = time.perf_counter()
        stats = ForwardStats(
            images=sum(len(batch.outcomes) for batch in batches),
            computed=count,
            padding=padding,
            busy_seconds=finished - launched,
        )
        return [
            BatchResult(
                outcomes=outcomes[place],
                started=batch.started,
                decoded=batch.decoded,
                launched=launched,
                forwarded=forwarded,
                finished=finished,
                cpu_seconds={"decode": batch.cpu_seconds, **({} if place else spent)},
                decoders=batch.decoders,
                forward=None if place else stats,
            )
            for place, batch in enumerate(batches)
        ]

    @property
    def survives_fork(self) -> bool:
        """Whether a process that is forked can use it: not where a library has threads of its own, or a GPU."""
        plain = self.device.type == "cpu" and self.plan.threads == 1 and self.loader.name in ("cpu", "pillow")
        return plain and not self.forward_stage.computes_elsewhere

    def close(self) -> None:
        """Let go of the model, and of what the loader holds."""
        self.forward_stage.close()
        self.loader.close()

    def _pixels(self, batches: Sequence[DecodedBatch]) -> Any:
        """The pixels of all batches, ready for what is launched next."""
        ready = [batch.ready for batch in batches if batch.ready is not None]
        return self.forward_stage.joined([batch.pixels for batch in batches if batch.ok], ready)

    def _extended(
        self, name: str, answers: Sequence[ImageResult], values: Any, asked: Sequence[bool], seconds: float
    ) -> list[ImageResult]:
        """The answers of a batch, with a row of values under a name in those that are to have it."""
        rows = self.forward_stage.on_host(values)
        return [
            replace(answer, **{name: row.tobytes(), "forward_seconds": seconds})
            if has_it and isinstance(answer, TopClasses)
            else answer
            for answer, row, has_it in zip(answers, rows, asked, strict=True)
        ]

    def _answers(self, probabilities: Any, top_k: list[int]) -> list[ImageResult]:
        """The best classes of each row. Rows with the same k go together, so that ties break as they do alone."""
        answers: list[ImageResult | None] = [None] * len(top_k)
        for k in set(top_k):
            rows = [row for row, row_k in enumerate(top_k) if row_k == k]
            part = probabilities if len(rows) == len(top_k) else probabilities[rows]
            for row, index, score in zip(rows, *self.forward_stage.best(part, k), strict=True):
                answers[row] = _predictions(index, score)
        return [InferenceError() if answer is None else answer for answer in answers]


def _completed(batch: DecodedBatch, answers: Iterator[ImageResult]) -> list[ImageResult]:
    """The results of a batch: its errors, and the next answers for the images that have pixels."""
    outcomes = list(batch.outcomes)
    for place in batch.ok:
        outcomes[place] = next(answers)
    return [InferenceError() if outcome is None else outcome for outcome in outcomes]


def _predictions(index: NDArray[np.int64], score: NDArray[np.float32]) -> ImageResult:
    """The predictions of one row, or an error where its probabilities are not finite."""
    if not math.isfinite(score[0]):
        logger.error("the model gave probabilities that are not finite numbers")
        return InferenceError()
    return TopClasses(index.astype(np.int32).tobytes(), score.tobytes())


def decoded_by(infos: Sequence[ImageInfo | None], decoders: Sequence[str | None]) -> Iterator[tuple[str, str]]:
    """Decoder and format of each image that was decoded and whose header was validated."""
    for info, decoder in zip(infos, decoders, strict=bool(decoders)):
        if info is not None and decoder is not None:
            yield "sandbox" if info.cropped else decoder, info.format


def default_batch_size(device: Device, plan: LanePlan) -> int:
    """Images of a batch that keep the device busy; more only adds waiting."""
    return GPU_BATCH_SIZE if device.type != "cpu" else max(8, plan.lanes * plan.micro_batch)
