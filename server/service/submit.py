"""Asks the engine: queues the images of a request and waits for the last answer, or until nobody waits for it.

Every protocol that brings images asks here, so that deadlines, departed callers and the books are the same for all.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from starlette.types import Receive

from ...inference.results import ImageResult
from ...loaders.errors import InputError
from ...loaders.headers.info import ImageInfo
from ...loaders.headers.validate import validate
from ..api.outcomes import outcome_label
from ..errors import ServiceError
from ..http.disconnect import cancel_on_disconnect
from ..repository.model_info import ModelInfo
from ..scheduler.request import Request
from ..telemetry.context import RequestContext
from .params import ClassifyParams

if TYPE_CHECKING:
    from .service import Service

CheckedImage = tuple[bytes, ImageInfo] | InputError | ServiceError
"""An image that passed the header guard, or why it did not."""


@dataclass(frozen=True, slots=True)
class Requester:
    """Who sent a request and waits for its answer.

    Args:
        source: the key's name or the client's address, as far as anybody knows.
        receive: where it is seen that the client leaves; None where its leaving cancels the task.
    """

    trace: RequestContext
    source: str | None
    receive: Receive | None

    async def wait(self, waiter: "asyncio.Future[None]") -> None:
        """Wait until `waiter` is resolved.

        Raises:
            ClientDisconnected: the client left first.
        """
        async with cancel_on_disconnect(waiter, self.receive, self.trace.departure):
            await waiter


class Answer(Protocol):
    """What becomes of each of the images, in order; `Service.answer` is one."""

    async def __call__(
        self, question: ClassifyParams, images: Sequence[CheckedImage], requester: Requester
    ) -> list[ImageResult]:
        """Answer one request.

        Raises:
            ServiceError: `overloaded`, `draining`, `not_ready`.
            ClientDisconnected: nobody waits any more.
            TimeoutError: the deadline passed in the queue.
        """
        ...


def check_image(image: bytes | ServiceError, model: ModelInfo) -> CheckedImage:
    """The header guard, before anything is queued; what is no image already stays what it is."""
    if isinstance(image, ServiceError):
        return image
    try:
        return image, validate(image, model.limits)
    except InputError as error:
        return error.with_traceback(None)  # whose frames hold the image


async def ask(
    service: "Service", question: ClassifyParams, images: Sequence[CheckedImage], requester: Requester
) -> list[ImageResult]:
    """What becomes of each image, counted; raises what `Answer` raises."""
    requester.trace.asks(question.model.name, len(images))
    try:
        outcomes = await service.answer(question, images, requester)
    except BaseException as error:
        count_outcomes(service, question.model, {outcome_label(error): len(images)})
        raise
    count_outcomes(service, question.model, Counter(map(outcome_label, outcomes)))
    return outcomes


async def submit_and_wait(
    service: "Service", question: ClassifyParams, images: Sequence[CheckedImage], requester: Requester
) -> list[ImageResult]:
    """Queue the images and wait for the engine; the innermost `Answer`. Marks the stages in the engine."""
    ticket, waiter, wanted = make_ticket(question, images, requester)
    if wanted:
        service.submit(ticket, wanted)
        try:
            await requester.wait(waiter)
        finally:
            service.forget(ticket)
        _mark_engine(service, question.model, ticket, requester.trace)
    return [outcome for outcome in ticket.outcomes if outcome is not None]


def count_outcomes(service: "Service", model: ModelInfo, outcomes: Mapping[str, int]) -> None:
    """Enter how so many images ended into the books."""
    images = service.metrics.model(model.name).images
    for outcome, count in outcomes.items():
        images[outcome].inc(count)


def make_ticket(
    question: ClassifyParams, images: Sequence[CheckedImage], requester: Requester
) -> tuple[Request, "asyncio.Future[None]", list[tuple[int, bytes, ImageInfo]]]:
    """A request as the queue sees it, what wakes it, and the images that passed the guard."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    deadline = requester.trace.started + question.timeout_seconds
    ticket = Request(
        *(question.model.key, question.top_k, deadline, waiter, len(images), requester.source, question.priority)
    )
    wanted: list[tuple[int, bytes, ImageInfo]] = []
    for place, image in enumerate(images):
        if isinstance(image, tuple):
            wanted.append((place, *image))
        else:
            ticket.outcomes[place] = image
    return ticket, waiter, wanted


def _mark_engine(service: "Service", model: ModelInfo, ticket: Request, trace: RequestContext) -> None:
    """The stages in the engine: of the batch that completed the request; waiting for others is queue."""
    result = ticket.last
    if result is None or trace.model is not None:  # the latter: marked by an earlier part of the same request
        return
    trace.ends += (result.started, result.decoded, result.launched, result.forwarded, result.finished)
    trace.mark()
    trace.model = service.metrics.model(model.name)
