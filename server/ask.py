"""Asks the engine: queues the images of a request and waits for the last answer, or until nobody waits for it.

Every protocol that brings images asks here, so that deadlines, departed callers and the books are the same for all.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping

from starlette.types import Receive

from ..loaders.errors import InputError
from ..loaders.guard import inspect
from ..loaders.info import ImageInfo
from .card import ModelCard
from .errors import ServiceError
from .outcome import Outcome
from .question import Question
from .routes.outcomes import word_for
from .service import Service
from .ticket import Ticket
from .trace import Trace
from .waiting import watched

ENGINE_STAGES = 6
"""From `queue` to `deliver`."""

Inspected = tuple[bytes, ImageInfo] | InputError | ServiceError
"""An image that passed the header guard, or why it did not."""


def inspect_image(image: bytes | ServiceError, model: ModelCard) -> Inspected:
    """The header guard, before anything is queued; what is no image already stays what it is."""
    if isinstance(image, ServiceError):
        return image
    try:
        return image, inspect(image, model.limits)
    except InputError as error:
        return error


async def ask(
    service: Service,
    question: Question,
    images: list[Inspected],
    trace: Trace,
    *,
    source: str | None,
    receive: Receive | None,
) -> list[Outcome]:
    """What becomes of each image, in order; counted, and the stages in the engine marked.

    Args:
        source: who asks, as far as anybody knows.
        receive: where it is seen that the client leaves; None where its leaving cancels the task.

    Raises:
        ServiceError: `overloaded`, `draining`, `not_ready`.
        ClientGone: nobody waits any more.
        TimeoutError: the deadline passed in the queue.
    """
    try:
        outcomes = await _outcomes(service, question, images, trace, source, receive)
    except BaseException as error:
        count_images(service, question.model, {word_for(error): len(images)})
        raise
    count_images(service, question.model, Counter(map(word_for, outcomes)))
    return outcomes


def count_images(service: Service, model: ModelCard, outcomes: Mapping[str, int]) -> None:
    """Enter how so many images ended into the books."""
    images = service.metrics.model(model.name).images
    for outcome, count in outcomes.items():
        images[outcome].inc(count)


def make_ticket(
    question: Question, images: list[Inspected], trace: Trace, source: str | None
) -> tuple[Ticket, "asyncio.Future[None]", list[tuple[int, bytes, ImageInfo]]]:
    """A request as the queue sees it, what wakes it, and the images that passed the guard."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    deadline = trace.started + question.timeout_seconds
    trace.asks(question.model.name, len(images))
    ticket = Ticket(question.model.key, question.top_k, deadline, waiter, len(images), source, question.priority)
    wanted: list[tuple[int, bytes, ImageInfo]] = []
    for place, image in enumerate(images):
        if isinstance(image, tuple):
            wanted.append((place, *image))
        else:
            ticket.outcomes[place] = image
    return ticket, waiter, wanted


async def _outcomes(
    service: Service,
    question: Question,
    images: list[Inspected],
    trace: Trace,
    source: str | None,
    receive: Receive | None,
) -> list[Outcome]:
    ticket, waiter, wanted = make_ticket(question, images, trace, source)
    cache = service.cache
    if cache is not None and wanted:
        wanted = await cache.answer(ticket, wanted, trace)
        if not wanted:
            mark_cached(service, question.model, trace)
    if wanted:
        service.submit(ticket, wanted)
        try:
            if receive is None:
                await waiter
            else:
                async with watched(waiter, receive, trace.departure):
                    await waiter
        finally:
            service.forget(ticket)
        _mark_engine(service, question.model, ticket, trace)
        if cache is not None:
            cache.learn(ticket)
    return [outcome for outcome in ticket.outcomes if outcome is not None]


def mark_cached(service: Service, model: ModelCard, trace: Trace) -> None:
    """The stages of a request that never was in the queue: they are there, and take no time."""
    trace.ends += trace.ends[-1:] * ENGINE_STAGES
    trace.model = service.metrics.model(model.name)


def _mark_engine(service: Service, model: ModelCard, ticket: Ticket, trace: Trace) -> None:
    """The stages in the engine: of the batch that completed the request; waiting for others is queue."""
    result = ticket.last
    if result is not None:
        trace.ends += (result.started, result.decoded, result.launched, result.forwarded, result.finished)
        trace.mark()
        trace.model = service.metrics.model(model.name)
