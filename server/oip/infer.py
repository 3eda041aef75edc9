"""Runs one inference, over REST or gRPC: from the tensors of a request to the tensors of its response."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ...inference.results import SCORE_BYTES, SCORE_COST, Predictions
from ..config.settings import Settings
from ..errors import ServiceError
from ..http.body_budget import BudgetLease
from ..repository.served_model import ServedModel
from ..scheduler.request import Outcome, outcome_label
from ..service.caller import Caller, CheckedImage, check_image
from ..service.params import ClassifyParams, check_scores
from ..service.service import Service
from ..service.submit import classify, count_outcomes
from ..telemetry.context import RequestContext
from .images import images_of
from .options import OUTPUTS, Options, WantedOutput, read_options
from .tensors import InferRequest, OutputTensor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request whose options have been read and whose images have passed the header check, or have an error."""

    id: str | None
    images: list[CheckedImage]
    options: Options

    @property
    def answer_cost(self) -> int:
        """How long it takes to write the answer, as the bytes of a body that take as long to parse."""
        return SCORE_COST * len(self.images) * self.options.engine_top_k


def find_version(service: Service, name: str, version: str) -> ServedModel:
    """Find the model of a name, which may be an alias; an empty `version` means the default one. Raises ServiceError
    `not_ready` while it is loaded, `unknown_model` where there is no such model or version."""
    if not service.models and (name in service.names or name in service.models.aliases):
        raise ServiceError("not_ready", "the models are loading", retry_after_seconds=1)
    return service.models.find(name, version or None)


@dataclass(frozen=True, slots=True)
class Inference:
    """One request to infer.

    Args:
        requested: the client named `params.timeout_seconds`; else it is our default.
        lease: the memory that the request has of the body budget.
        charge: called with the number of images; may raise ServiceError.
    """

    service: Service
    params: ClassifyParams
    requested: bool
    caller: Caller
    lease: BudgetLease
    charge: Callable[[int], None]

    async def answer(
        self, read: Callable[[], Awaitable[Prepared]], write: Callable[[str | None, list[OutputTensor]], T]
    ) -> T:
        """Read, classify and write, all before the time of the request is over. Raises ServiceError `deadline` when it
        is, what `read` and `write` raise, and the error of an image, see `_outcomes`."""
        deadline = Deadline(self.params.timeout_seconds, self.caller.context, self.requested)
        try:
            async with asyncio.timeout(deadline.left()) as deadline.timeout:
                prepared = await read()
                outcomes = await self._outcomes(prepared, deadline)

                def written() -> T:
                    return write(prepared.id, output_tensors(self.params.model, outcomes, prepared.options))

                return await self.service.parsers.run(written, prepared.answer_cost)
        except TimeoutError:
            raise ServiceError("deadline", f"no answer within {round(deadline.seconds * 1e3)} ms") from None

    async def _outcomes(self, prepared: Prepared, deadline: "Deadline") -> list[Outcome]:
        """Classify the images: every outcome is predictions, or some are where the request takes partial answers.
        Raises the error of the first bad image, where it takes none or no image is good."""
        service, model, options = self.service, self.params.model, prepared.options
        if options.timeout_seconds is not None:
            deadline.set(options.timeout_seconds)
        params = replace(self.params, top_k=options.engine_top_k, timeout_seconds=deadline.seconds)
        try:
            self.charge(len(prepared.images))
        except ServiceError:
            count_outcomes(service, model, {"rejected": len(prepared.images)})
            raise
        if not options.partial:
            _refuse_bad(service, model, prepared.images)
        self.lease.take_for_answer(SCORE_BYTES * len(prepared.images) * params.top_k)
        images = await service.sandboxed_images.decode(
            prepared.images, model.spec, self.lease, self.caller, deadline.left()
        )
        self.caller.context.end_stage("parse")
        if not options.partial:
            _refuse_bad(service, model, images)
        outcomes = await classify(service, params, images, self.caller)
        bad = [index for index, outcome in enumerate(outcomes) if not isinstance(outcome, Predictions)]
        if bad and (not options.partial or len(bad) == len(outcomes)):
            raise _image_error(outcomes[bad[0]], bad[0], len(outcomes))
        return outcomes


class Deadline:
    """The time that a request may take in all; its headers may name one, and its body another."""

    def __init__(self, seconds: float, context: RequestContext, requested: bool) -> None:
        self.seconds = seconds
        self.timeout: asyncio.Timeout | None = None
        self._context = context
        self._requested = requested

    def left(self) -> float:
        """Seconds until the end."""
        return self._context.started + self.seconds - time.perf_counter()

    def set(self, seconds: float) -> None:
        """Take the time that the body names; where the headers named one too, the shorter counts."""
        assert self.timeout is not None
        self.seconds = min(self.seconds, seconds) if self._requested else seconds
        self.timeout.reschedule(asyncio.get_running_loop().time() + self.left())


def prepare(request: InferRequest, model: ServedModel, settings: Settings) -> Prepared:
    """Read the options and check each image's header; this costs at most one copy of the images. Raises ServiceError
    where the request as a whole cannot be answered."""
    settings = settings.of(model.name)
    options = read_options(request, model, settings)
    images = images_of(request.inputs, model, settings.max_images_per_request)
    check_scores(len(images), options.engine_top_k)
    return Prepared(request.id, [check_image(image, model) for image in images], options)


def output_tensors(model: ServedModel, outcomes: Sequence[Outcome], options: Options) -> list[OutputTensor]:
    """Make the wanted outputs in the order wanted; the row of an image that failed has "", -1 and not-a-number."""
    return [_output_tensor(model, outcomes, options, output) for output in options.outputs]


def _refuse_bad(service: Service, model: ServedModel, images: list[CheckedImage]) -> None:
    """Fail the request before anything of it is computed, where the header check or the sandbox refused an image."""
    bad = [index for index, image in enumerate(images) if not isinstance(image, tuple)]
    if bad:
        counts = Counter(outcome_label(images[index]) for index in bad)
        count_outcomes(service, model, counts + Counter(rejected=len(images) - len(bad)))
        raise _image_error(images[bad[0]], bad[0], len(images))


def _image_error(failure: object, index: int, count: int) -> ServiceError:
    """Make the error of one image the error of its request."""
    code, message = getattr(failure, "code", "internal"), getattr(failure, "message", "")
    retry = getattr(failure, "retry_after_seconds", None)
    return ServiceError(code, f"image {index}: {message}" if count > 1 else message, retry_after_seconds=retry)


def _output_tensor(
    model: ServedModel, outcomes: Sequence[Outcome], options: Options, output: WantedOutput
) -> OutputTensor:
    name, count = output.name, len(outcomes)
    if name == "error":
        texts = ["" if isinstance(outcome, Predictions) else outcome.message for outcome in outcomes]
        return OutputTensor(name, "BYTES", (count,), texts, output.binary)
    if output.classes:
        texts = [text for outcome in outcomes for text in _ranking(model, outcome, output.classes)]
        return OutputTensor(name, "BYTES", (count, output.classes), texts, output.binary)
    if name == "probabilities":
        rows = np.concatenate([_probabilities(outcome, model.num_classes) for outcome in outcomes])
        return OutputTensor(name, "FP32", (count, model.num_classes), rows, output.binary)
    dtype: Literal["int32", "float32"] = "float32" if name == "score" else "int32"
    values = np.concatenate([_best(outcome, dtype, options.top_k) for outcome in outcomes])
    label_texts = model.label_texts if name == "label" else None
    return OutputTensor(name, OUTPUTS[name], (count, options.top_k), values, output.binary, label_texts)


def _best(outcome: Outcome, dtype: Literal["int32", "float32"], top_k: int) -> npt.NDArray[Any]:
    """The places in the labels, or the scores, of the best classes of an image."""
    if not isinstance(outcome, Predictions):
        return np.full(top_k, math.nan if dtype == "float32" else -1, dtype)
    return np.frombuffer(getattr(outcome, dtype), dtype)[:top_k]


def _ranking(model: ServedModel, outcome: Outcome, classes: int) -> list[str]:
    """Write `score:index:label` for the best classes, as Triton's classification extension has it."""
    if not isinstance(outcome, Predictions):
        return [""] * classes
    best = zip(outcome.score[:classes], outcome.index[:classes], strict=True)
    return [f"{score!r}:{index}:{model.labels[index].label}" for score, index in best]


def _probabilities(outcome: Outcome, num_classes: int) -> npt.NDArray[np.float32]:
    """The probability of every class, in the order of the classes."""
    row = np.full(num_classes, 0 if isinstance(outcome, Predictions) else math.nan, np.float32)
    if isinstance(outcome, Predictions):
        row[np.frombuffer(outcome.int32, np.int32)] = np.frombuffer(outcome.float32, np.float32)
    return row
