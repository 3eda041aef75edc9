"""Queues the images of a request and waits for the last answer, or until nobody waits for it.

Every protocol that brings images comes here, so that deadlines, departed callers and metrics are the same for all.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...loaders.headers.info import ImageInfo
from ..repository.served_model import ServedModel
from ..scheduler.request import Outcome, Request, outcome_label
from ..telemetry.context import RequestContext
from .caller import Caller, CheckedImage
from .params import ClassifyParams

if TYPE_CHECKING:
    from .service import Service


async def classify(
    service: "Service", params: ClassifyParams, images: Sequence[CheckedImage], caller: Caller
) -> list[Outcome]:
    """Queue the images, wait for the engine, and count what became of each; mark the stages in the engine.

    Raises ServiceError `overloaded`, `draining`, `not_ready`; ClientDisconnected where nobody waits any more;
    TimeoutError where the deadline passed in the queue.
    """
    caller.context.note_request(params.model.name, len(images))
    try:
        request, waiter, checked = make_request(params, images, caller)
        if checked:
            service.submit(request, checked)
            try:
                await caller.wait(waiter)
            finally:
                service.finish(request)
            _mark_engine(service, params.model, request, caller.context)
    except BaseException as error:
        count_outcomes(service, params.model, {outcome_label(error): len(images)})
        raise
    outcomes = [outcome for outcome in request.outcomes if outcome is not None]
    count_outcomes(service, params.model, Counter(map(outcome_label, outcomes)))
    return outcomes


def count_outcomes(service: "Service", model: ServedModel, outcomes: Mapping[str, int]) -> None:
    """Count images by how they ended."""
    images = service.metrics.model(model.name).images
    for outcome, count in outcomes.items():
        images[outcome].inc(count)


def make_request(
    params: ClassifyParams, images: Sequence[CheckedImage], caller: Caller
) -> tuple[Request, "asyncio.Future[None]", list[tuple[int, bytes, ImageInfo]]]:
    """A request as the queue sees it, what wakes it, and the images whose headers passed."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    context = caller.context
    deadline = context.started + params.timeout_seconds
    request = Request(
        *(params.model.key, params.top_k, deadline, waiter, len(images), context.caller, params.priority, context.flow)
    )
    checked: list[tuple[int, bytes, ImageInfo]] = []
    for index, image in enumerate(images):
        if isinstance(image, tuple):
            checked.append((index, *image))
        else:
            request.outcomes[index] = image
    return request, waiter, checked


def _mark_engine(service: "Service", model: ServedModel, request: Request, context: RequestContext) -> None:
    """The stages in the engine: of the batch that completed the request; waiting for others is queue."""
    result = request.last
    if result is None:
        return
    stages = context.stages
    stages.queue, stages.decode, stages.ready = result.started, result.decoded, result.launched
    stages.forward, stages.postprocess = result.forwarded, result.finished
    context.end_stage("deliver")
    context.model_metrics = service.metrics.model(model.name)
