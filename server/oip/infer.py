"""Reads an inference request, over REST or gRPC, and makes the tensors of its response."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ...inference.results import TopClasses
from ..config.settings import Settings
from ..repository.served_model import ServedModel
from ..scheduler.request import Outcome
from ..service.caller import CheckedImage, check_image
from ..service.embedding_format import EmbeddingFormat
from ..service.inference_handler import ChangeParams, Query, image_error
from ..service.params import ClassifyParams, check_embedding, check_scores
from ..service.service import Service
from .images import images_of
from .options import OUTPUTS, Options, WantedOutput, read_options
from .tensors import InferRequest, OutputTensor

T = TypeVar("T")

Write = Callable[[str | None, list[OutputTensor]], T]
"""Makes a response from the id of its request, and its outputs."""


async def read_query(
    service: Service, request: InferRequest, size: int, params: ClassifyParams, write: Write[T], change: ChangeParams
) -> Query[T]:
    """Read the options of a request, and check each image's header. `size`: of its message, bytes. Raises ServiceError
    where the request as a whole cannot be answered."""
    model = params.model
    options, images = await service.parsers.run(lambda: _prepare(request, model, service.settings.of(model.name)), size)
    seconds = params.timeout_seconds
    if options.timeout_seconds is not None:  # where the headers named a time too, the shorter counts
        seconds = min(seconds, options.timeout_seconds) if params.timeout_named else options.timeout_seconds
    embedding = EmbeddingFormat() if options.embeds else None
    change(replace(params, top_k=options.engine_top_k, timeout_seconds=seconds, embedding=embedding))
    return Query(images, partial(_respond, write, request.id, model, options), whole=not options.partial)


def _prepare(request: InferRequest, model: ServedModel, settings: Settings) -> tuple[Options, list[CheckedImage]]:
    """This costs at most one copy of the images."""
    options = read_options(request, model, settings)
    images = images_of(request.inputs, model, settings.max_images_per_request)
    if options.embeds:
        check_embedding(model)
    check_scores(len(images), options.engine_top_k + options.embeds * model.embedding_width)
    return options, [check_image(image, model) for image in images]


def _respond(
    write: Write[T], request_id: str | None, model: ServedModel, options: Options, outcomes: Sequence[Outcome]
) -> T:
    """Write the outputs in the order wanted; the row of an image that failed has "", -1 and not-a-number. Raises the
    error of the first bad image, where the request takes no partial answers or no image is good."""
    bad = [index for index, outcome in enumerate(outcomes) if not isinstance(outcome, TopClasses)]
    if bad and (not options.partial or len(bad) == len(outcomes)):
        raise image_error(outcomes[bad[0]], bad[0], len(outcomes))
    return write(request_id, [_output_tensor(model, outcomes, options, output) for output in options.outputs])


def _output_tensor(
    model: ServedModel, outcomes: Sequence[Outcome], options: Options, output: WantedOutput
) -> OutputTensor:
    name, count = output.name, len(outcomes)
    if name == "error":
        texts = ["" if isinstance(outcome, TopClasses) else outcome.message for outcome in outcomes]
        return OutputTensor(name, "BYTES", (count,), texts, output.binary)
    if output.classes:
        texts = [text for outcome in outcomes for text in _ranking(model, outcome, output.classes, options.threshold)]
        return OutputTensor(name, "BYTES", (count, output.classes), texts, output.binary)
    if name == "probabilities":
        rows = np.concatenate([_probabilities(outcome, model.num_classes) for outcome in outcomes])
        return OutputTensor(name, "FP32", (count, model.num_classes), rows, output.binary)
    if name == "embedding":
        rows = np.concatenate([_embedding(outcome, model.embedding_width) for outcome in outcomes])
        return OutputTensor(name, "FP32", (count, model.embedding_width), rows, output.binary)
    dtype: Literal["int32", "float32"] = "float32" if name == "score" else "int32"
    values = np.concatenate([_best(outcome, dtype, options) for outcome in outcomes])
    label_texts = model.label_texts if name == "label" else None
    return OutputTensor(name, OUTPUTS[name], (count, options.top_k), values, output.binary, label_texts)


def _best(outcome: Outcome, dtype: Literal["int32", "float32"], options: Options) -> npt.NDArray[Any]:
    """The places in the labels, or the scores, of the best classes of an image."""
    none = math.nan if dtype == "float32" else -1
    if not isinstance(outcome, TopClasses):
        return np.full(options.top_k, none, dtype)
    best = np.frombuffer(getattr(outcome, dtype), dtype)[: options.top_k]
    if not options.threshold:
        return best
    return np.where(np.array(outcome.score[: options.top_k]) >= options.threshold, best, np.array(none, dtype))


def _ranking(model: ServedModel, outcome: Outcome, classes: int, threshold: float) -> list[str]:
    """Write `score:index:label` for the best classes, as Triton's classification extension has it."""
    if not isinstance(outcome, TopClasses):
        return [""] * classes
    best = zip(outcome.score[:classes], outcome.index[:classes], strict=True)
    return [f"{score!r}:{index}:{model.labels[index].label}" if score >= threshold else "" for score, index in best]


def _embedding(outcome: Outcome, width: int) -> npt.NDArray[np.float32]:
    if not isinstance(outcome, TopClasses):
        return np.full(width, math.nan, np.float32)
    return np.frombuffer(outcome.embedding, np.float32)


def _probabilities(outcome: Outcome, num_classes: int) -> npt.NDArray[np.float32]:
    """The probability of every class, in the order of the classes."""
    row = np.full(num_classes, 0 if isinstance(outcome, TopClasses) else math.nan, np.float32)
    if isinstance(outcome, TopClasses):
        row[np.frombuffer(outcome.int32, np.int32)] = np.frombuffer(outcome.float32, np.float32)
    return row
