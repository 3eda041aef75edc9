"""One inference, whatever protocol brought it: from a request's tensors to the tensors of its answer."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from ...inference.results import SCORE_COST, Predictions
from ..config.settings import Settings
from ..errors import ServiceError
from ..http.body_budget import BudgetLease
from ..repository.model_info import ModelInfo
from ..scheduler.request import Outcome
from ..service.params import ClassifyParams, check_scores, params_for
from ..service.service import Service
from ..service.submit import CheckedImage, Requester, ask, check_image, count_outcomes
from ..telemetry.context import RequestContext
from .images import images_of
from .options import Options, read_options
from .tensors import InferRequest


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request whose images were looked at and whose options were read."""

    id: str | None
    images: list[CheckedImage]
    options: Options

    @property
    def answer_cost(self) -> int:
        """What writing its answer takes, in bytes of a body that would take as long to parse."""
        return SCORE_COST * len(self.images) * self.options.engine_top_k


def find_version(service: Service, name: str, version: str) -> ModelInfo:
    """The model of that name, which may be an alias; `version` may be empty.

    Raises:
        ServiceError: `not_ready` while it is loaded, `unknown_model` where there is no such model or version.
    """
    if not service.models and (name in service.names or name in service.models.aliases):
        raise ServiceError("not_ready", "the models are loading", retry_after_seconds=1)
    return service.models.find(name, version or None)


def question_of(service: Service, model: ModelInfo, trace: RequestContext) -> ClassifyParams:
    """What the headers say: by when, and whether others go first; the rest is in the body."""
    return params_for(model, trace.headers, service.settings)


@asynccontextmanager
async def before_deadline(params: ClassifyParams, trace: RequestContext, *, said: bool) -> AsyncIterator["Clock"]:
    """What runs inside must end in time.

    Args:
        said: the time is the client's word, not our default.

    Raises:
        ServiceError: `deadline` where it does not.
    """
    clock = Clock(params.timeout_seconds, trace, said)
    try:
        async with asyncio.timeout(clock.left()) as clock.timeout:
            yield clock
    except TimeoutError:
        raise ServiceError("deadline", f"no answer within {round(clock.seconds * 1e3)} ms") from None


class Clock:
    """How long a request may take in all; its body may say so after its headers did."""

    def __init__(self, seconds: float, trace: RequestContext, said: bool) -> None:
        self.seconds = seconds
        self.timeout: asyncio.Timeout | None = None
        self._trace = trace
        self._said = said

    def left(self) -> float:
        """Seconds until the end."""
        return self._trace.started + self.seconds - time.perf_counter()

    def set(self, seconds: float) -> None:
        """The body's word; of two words the shorter counts."""
        assert self.timeout is not None
        self.seconds = min(self.seconds, seconds) if self._said else seconds
        self.timeout.reschedule(asyncio.get_running_loop().time() + self.left())


def prepare(request: InferRequest, model: ModelInfo, settings: Settings) -> Prepared:
    """Read the options and look at each image's header; costs no more than that and one copy of the images.

    Raises:
        ServiceError: what is wrong with the request as a whole.
    """
    settings = settings.of(model.name)
    options = read_options(request, model, settings)
    images = images_of(request.inputs, model, settings.max_images_per_request)
    check_scores(len(images), options.engine_top_k)
    return Prepared(request.id, [check_image(image, model) for image in images], options)


async def infer(
    service: Service,
    params: ClassifyParams,
    prepared: Prepared,
    clock: Clock,
    requester: Requester,
    hold: BudgetLease,
    *,
    charge: Callable[[int], None],
) -> list[Outcome]:
    """What became of each image: all are predictions, or some where the request takes partial answers.

    Args:
        hold: of the request.
        charge: told how many images there are; may raise ServiceError.

    Raises:
        ServiceError: the first image's that is bad, where the request does not take partial answers or none is good.
    """
    options = prepared.options
    if options.timeout_seconds is not None:
        clock.set(options.timeout_seconds)
    params = replace(params, top_k=options.engine_top_k, timeout_seconds=clock.seconds)
    try:
        charge(len(prepared.images))
    except ServiceError:
        count_outcomes(service, params.model, {"rejected": len(prepared.images)})
        raise
    if not options.partial:
        _refuse_bad(service, params.model, prepared.images)
    images = await service.sandboxed_images.decode(prepared.images, params.model.spec, hold, clock.left())
    requester.context.end_stage("parse")
    if not options.partial:
        _refuse_bad(service, params.model, images)
    outcomes = await ask(service, params, images, requester)
    bad = [place for place, outcome in enumerate(outcomes) if not isinstance(outcome, Predictions)]
    if bad and (not options.partial or len(bad) == len(outcomes)):
        raise _located(outcomes[bad[0]], bad[0], len(outcomes))
    return outcomes


def _refuse_bad(service: Service, model: ModelInfo, images: list[CheckedImage]) -> None:
    """An image that the guard refused fails the request before anything of it is computed."""
    bad = [place for place, image in enumerate(images) if not isinstance(image, tuple)]
    if bad:
        count_outcomes(service, model, {"invalid": len(bad), "rejected": len(images) - len(bad)})
        raise _located(images[bad[0]], bad[0], len(images))


def _located(failure: object, place: int, count: int) -> ServiceError:
    """An image's error as the request's."""
    code, message = getattr(failure, "code", "internal"), getattr(failure, "message", "")
    return ServiceError(code, f"image {place}: {message}" if count > 1 else message)
