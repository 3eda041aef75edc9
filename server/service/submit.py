"""Asks the engine: queues the images of a request and waits for the last answer, or until nobody waits for it.

Every protocol that brings images asks here, so that deadlines, departed callers and metrics are the same for all.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.types import Receive

from ...loaders.errors import InputError
from ...loaders.headers.info import ImageInfo
from ...loaders.headers.validate import validate
from ..errors import ServiceError
from ..http.disconnect import cancel_on_disconnect
from ..repository.served_model import ServedModel
from ..scheduler.request import Outcome, Request, outcome_label
from ..telemetry.context import RequestContext
from .params import ClassifyParams

if TYPE_CHECKING:
    from .service import Service

CheckedImage = tuple[bytes, ImageInfo] | InputError | ServiceError
"""An image that passed the check of its header, or why it did not."""


@dataclass(frozen=True, slots=True)
class Requester:
    """The client that waits for an answer. `receive` is the ASGI channel on which it is seen to leave; None where its
    leaving cancels the task."""

    context: RequestContext
    receive: Receive | None

    async def wait(self, waiter: "asyncio.Future[None]") -> None:
        """Wait until `waiter` is resolved. Raises ClientDisconnected where the client left first."""
        async with cancel_on_disconnect(waiter, self.receive, self.context.disconnect):
            await waiter


def check_image(image: bytes | ServiceError, model: ServedModel) -> CheckedImage:
    """Check an image's header before anything is queued; an error stays as it is."""
    if isinstance(image, ServiceError):
        return image
    try:
        return image, validate(image, model.limits)
    except InputError as error:
        return error.with_traceback(None)  # whose frames hold the image


async def ask(
    service: "Service", params: ClassifyParams, images: Sequence[CheckedImage], requester: Requester
) -> list[Outcome]:
    """Queue the images, wait for the engine, and count what became of each; mark the stages in the engine.

    Raises ServiceError `overloaded`, `draining`, `not_ready`; ClientDisconnected where nobody waits any more;
    TimeoutError where the deadline passed in the queue.
    """
    requester.context.asks(params.model.name, len(images))
    try:
        request, waiter, wanted = make_request(params, images, requester)
        if wanted:
            service.submit(request, wanted)
            try:
                await requester.wait(waiter)
            finally:
                service.finish(request)
            _mark_engine(service, params.model, request, requester.context)
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
    params: ClassifyParams, images: Sequence[CheckedImage], requester: Requester
) -> tuple[Request, "asyncio.Future[None]", list[tuple[int, bytes, ImageInfo]]]:
    """A request as the queue sees it, what wakes it, and the images whose headers passed."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    context = requester.context
    deadline = context.started + params.timeout_seconds
    request = Request(
        *(params.model.key, params.top_k, deadline, waiter, len(images), context.caller, params.priority, context.flow)
    )
    wanted: list[tuple[int, bytes, ImageInfo]] = []
    for index, image in enumerate(images):
        if isinstance(image, tuple):
            wanted.append((index, *image))
        else:
            request.outcomes[index] = image
    return request, waiter, wanted


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
