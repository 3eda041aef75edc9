"""A model in this process that answers as a server does: `milkweed.load` and `milkweed classify` without a URL."""

import os
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, cast, overload

from .client.answers import Answer, Embeddings, Prediction, embeddings
from .client.errors import check_process, make_error, refuse_pickle
from .client.images import EncodedImage, Image, encode, encoded, in_batches, is_one
from .inference.device import use_device
from .inference.open import OpenedModel, open_model
from .inference.results import BatchResult, ImageResult, TopClasses
from .server.config.inference_options import inference_options
from .server.config.settings import LOCAL_FORMATS
from .server.config.sources import load_settings, settings_environment

if TYPE_CHECKING:
    from .inference.decode_stage import DecodedBatch

BATCH_BYTES = 64 << 20
"""Encoded images of one batch take so many bytes at most."""

DECODING, COMPUTING = 0, 1
"""The halves of a pipeline, each of which is for one thread at a time."""


def open_local(
    bundle: str | os.PathLike[str], device: str | None = None, max_image_bytes: int | None = None
) -> "LocalModel":
    """Open a bundle under the MILKWEED_* settings, for files of the user, which may have rare formats too.

    Args:
        bundle: its folder; "demo" is the model that comes with the package.
        device, max_image_bytes: in place of the settings of these names, where given.

    Raises:
        ValueError: one line that says what is wrong.
    """
    path = Path(str(files("milkweed.models") / "demo")) if bundle == "demo" else Path(bundle)
    # What a server or a search has measured on this machine is used; to measure would take longer than most work.
    chosen = {"device": device, "tuning": "off", "cuda_graphs": False, "max_image_bytes": max_image_bytes}
    if "formats" not in settings_environment():
        chosen["formats"] = LOCAL_FORMATS
    settings = load_settings(chosen, serving=False)
    options = replace(inference_options(settings), one_shot=True)
    return LocalModel(path.resolve().name, open_model(path, options), settings.top_k)


class LocalModel:
    """A warm model. Close it, or use it as a context manager. Any thread may call it; a RuntimeError once it is closed.

    Args:
        top_k: classes an answer where a call says nothing, or as many as there are.
    """

    def __init__(self, name: str, opened: OpenedModel, top_k: int) -> None:
        self._name, self._config, self._pipeline = name, opened.config, opened.pipeline
        self._top_k = min(top_k, self.num_classes)
        self._locks: dict[int, tuple[threading.Lock, threading.Lock]] = {}  # of each process
        self._pid, self._closed = os.getpid(), False

    __reduce__ = refuse_pickle

    def __enter__(self) -> "LocalModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the model's threads, when the batches that are in work are done."""
        with self._lock(DECODING), self._lock(COMPUTING):
            self._closed = True
            if self._pid == os.getpid() or self._pipeline.survives_fork:
                self._pipeline.close()

    @property
    def name(self) -> str:
        """The name of the bundle's folder."""
        return self._name

    @property
    def version(self) -> str:
        """The bundle's version."""
        return self._config.version

    @property
    def embedding_width(self) -> int:
        """Values of an image's embedding; 0 where the backend gives none."""
        if self._config.embeds:
            return self._config.num_classes
        return self._pipeline.forward_stage.embedding_width

    @property
    def num_classes(self) -> int:
        """The number of the model's classes; 0 where it gives embeddings alone."""
        return 0 if self._config.embeds else self._pipeline.num_classes

    @overload
    def classify(  # type: ignore[overload-overlap]  # text is a path, not several
        self, images: Image, top_k: int | None = None, threshold: float = 0.0
    ) -> Answer: ...

    @overload
    def classify(self, images: Iterable[Image], top_k: int | None = None, threshold: float = 0.0) -> list[Answer]: ...

    def classify(
        self, images: Image | Iterable[Image], top_k: int | None = None, threshold: float = 0.0
    ) -> Answer | list[Answer]:
        """Classes of one image, or of each of several.

        Args:
            images: as a `Client` takes them; `stream` holds fewer at once.
            top_k: classes an answer, 1 to `num_classes`; 5 if None, or all where there are fewer.
            threshold: least score of an answer's classes, 0 to 1; there may then be none.

        Returns:
            An answer, or a list of them in order, in which an image that got none has its `error`.

        Raises:
            MilkweedError: the one image got no answer.
            ValueError: `top_k`, `threshold`, or what is given as an image, cannot be.
        """
        if not is_one(images):
            return list(self.stream(cast("Iterable[Image]", images), top_k, threshold))
        (answer,) = self.stream([encode(images)], top_k, threshold)
        if answer.error is not None:
            raise answer.error
        return answer

    def embed(self, images: Image | Iterable[Image], *, normalize: bool = False) -> Embeddings:
        """The embedding of one image (width,), or of each of several (n, width), in order.

        Args:
            normalize: scaled to length 1.

        Raises:
            MilkweedError: an image has none; the class says why.
            ValueError: the model has none in the backend that computes it.
        """
        if is_one(images):
            return embeddings(self.stream([encode(images)], embedding=True), normalize)[0]
        return embeddings(self.stream(cast("Iterable[Image]", images), embedding=True), normalize)

    def stream(
        self, images: Iterable[Image], top_k: int | None = None, threshold: float = 0.0, *, embedding: bool = False
    ) -> Iterator[Answer]:
        """The answers to any number of images, in order, as they come.

        The next batch is read and decoded while one is computed; no more is held.

        Args:
            embedding: answers have the image's embedding too.
        """
        if not self.num_classes:
            if not embedding:
                raise ValueError(f"the model {self.name} has no classes: it gives embeddings alone")
            return self._stream(images, 1, True)
        top_k = self._top_k if top_k is None else top_k
        if not 1 <= top_k <= self.num_classes:
            raise ValueError(f"top_k is {top_k}: expected 1..{self.num_classes}")
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}: expected 0 to 1")
        if embedding and not self.embedding_width:
            raise ValueError(f"the model {self.name}, computed by {self._pipeline.backend.name}, has no embedding")
        return (_at_least(threshold, answer) for answer in self._stream(images, top_k, embedding))

    def _stream(self, images: Iterable[Image], top_k: int, embeds: bool) -> Iterator[Answer]:
        batches, pid = in_batches(encoded(images), self._pipeline.default_batch_size, BATCH_BYTES), os.getpid()
        with ThreadPoolExecutor(1, "milkweed-local") as ahead:
            decoding = ahead.submit(self._decode, next(batches, None))
            while (decoded := decoding.result()) is not None:
                decoding = ahead.submit(self._decode, next(batches, None))
                yield from self._compute(*decoded, top_k, embeds)
                check_process(pid, "this stream")

    def _decode(self, batch: Sequence[EncodedImage] | None) -> "tuple[Sequence[EncodedImage], DecodedBatch] | None":
        """A batch and its decoded images."""
        if batch is None:
            return None
        images = [image for image in batch if isinstance(image, bytes)]
        with self._lock(DECODING):
            self._check()
            use_device(self._pipeline.device)
            return batch, self._pipeline.decode(images, [None] * len(images))

    def _compute(
        self, batch: Sequence[EncodedImage], decoded: "DecodedBatch", top_k: int, embeds: bool
    ) -> Iterator[Answer]:
        with self._lock(COMPUTING):
            self._check()
            use_device(self._pipeline.device)
            count = len(decoded.outcomes)
            (result,) = self._pipeline.forward([decoded], [[top_k] * count], [[embeds] * count])
        outcomes = iter(result.outcomes)
        stages = _stages(result)
        for image in batch:
            if isinstance(image, bytes):
                yield self._answer(next(outcomes), stages)
            else:
                yield Answer(error=image)

    def _check(self) -> None:
        if self._closed:
            raise RuntimeError(f"the model {self.name} is closed")
        if not self._pipeline.survives_fork:
            check_process(self._pid, f"the model {self.name}")

    def _lock(self, half: int) -> threading.Lock:
        pid = os.getpid()
        return (self._locks.get(pid) or self._locks.setdefault(pid, (threading.Lock(), threading.Lock())))[half]

    def _answer(self, outcome: ImageResult, stages: dict[str, float]) -> Answer:
        predictions: tuple[Prediction, ...] = ()
        error = sure = embedding = None
        if isinstance(outcome, TopClasses):
            labels, known = self._config.labels, self._config.confidence
            sure = None if known is None else outcome.confidence >= known.threshold
            embedding = array("f", outcome.embedding) if outcome.embedding else None
            predictions = tuple(
                Prediction(index, labels[index].id, labels[index].label, score)
                for index, score in (zip(outcome.index, outcome.score, strict=True) if self.num_classes else ())
            )
        else:
            error = make_error(outcome.code, outcome.message)
        return Answer(predictions, error, self.name, self.version, stages=stages, sure=sure, embedding=embedding)


def _at_least(threshold: float, answer: Answer) -> Answer:
    """Leave out the classes of a lower score."""
    best = tuple(row for row in answer.predictions if row.score >= threshold)
    return answer if len(best) == len(answer.predictions) else replace(answer, predictions=best)


def _stages(result: BatchResult) -> dict[str, float]:
    """The stages of a batch that a server's answer has too, in ms."""
    ends = (("decode", result.started, result.decoded), ("forward", result.launched, result.forwarded))
    return {name: round((end - start) * 1e3, 3) for name, start, end in ends}
