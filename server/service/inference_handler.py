"""InferenceHandler: takes a request of any protocol from its body to its answer, all before its time is over."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from ...inference.results import SCORE_BYTES
from ..errors import ServiceError
from ..http.parser_threads import ParserThreads
from ..scheduler.request import Outcome, outcome_label
from ..telemetry.context import RequestContext
from .caller import Caller, CheckedImage
from .dispatcher import Dispatcher
from .fetched_images import FetchedImages
from .loaded_models import ModelLeases
from .params import ClassifyParams
from .sandboxed_images import SandboxedImages

T = TypeVar("T")

ChangeParams = Callable[[ClassifyParams], None]
"""Takes what the body of a request asks for, where its head did not say that."""


class Query(NamedTuple, Generic[T]):
    """What the body of a request brought.

    Args:
        images: each with a checked header, or an error.
        write: makes the answer from the outcomes of the images; may raise ServiceError.
        whole: the request fails with its first bad image, before anything of it is computed.
    """

    images: list[CheckedImage]
    write: Callable[[list[Outcome]], T]
    whole: bool = False


class InferenceHandler:
    """Handles the requests of all protocols; belongs to the event loop."""

    def __init__(
        self,
        leases: ModelLeases,
        dispatcher: Dispatcher,
        parsers: ParserThreads,
        fetched: FetchedImages,
        sandbox: SandboxedImages,
    ) -> None:
        self._leases, self._dispatcher = leases, dispatcher
        self._parsers, self._fetched, self._sandbox = parsers, fetched, sandbox

    async def answer(
        self,
        params: ClassifyParams,
        caller: Caller,
        read: Callable[[ChangeParams], Awaitable[Query[T]]],
        stream: Callable[[ClassifyParams, list[CheckedImage]], Awaitable[T]] | None = None,
    ) -> T:
        """Read a request, charge and decode its images, have them classified, and write the answer.

        Args:
            params: what its head asks for.
            stream: classifies and answers in its own way, and keeps the time by itself.

        Raises:
            ServiceError: `deadline` when its time is over, and what each step raises.
            ClientDisconnected: nobody waits for the answer any more.
        """
        with ExitStack() as models:
            models.enter_context(self._leases.lease(params.model.key))

            def change(changed: ClassifyParams) -> None:
                nonlocal params
                if changed.model is not params.model:
                    models.enter_context(self._leases.lease(changed.model.key))
                if changed.timeout_seconds != params.timeout_seconds:
                    timeout.reschedule(asyncio.get_running_loop().time() + _left(changed, caller.context))
                params = changed

            try:
                async with asyncio.timeout(_left(params, caller.context)) as timeout:
                    query = await read(change)
                    await self._prepare(query, params, caller)
                    if stream is not None:
                        timeout.reschedule(None)  # late images become lines, and do not end what has begun
                        return await stream(params, query.images)
                    outcomes = await self._dispatcher.classify(params, query.images, caller)
                    return await self._parsers.run(partial(query.write, outcomes), len(outcomes) * params.cost)
            except TimeoutError:
                raise ServiceError("deadline", f"no answer within {round(params.timeout_seconds * 1e3)} ms") from None

    async def _prepare(self, query: Query[T], params: ClassifyParams, caller: Caller) -> None:
        """Charge the images, take the memory of their answer, fetch those by URL, and decode those of rare formats."""
        images, model = query.images, params.model
        try:
            caller.charge(len(images))
        except ServiceError:
            self._dispatcher.count(params, {"rejected": len(images)})
            raise
        await self._fetched.fetch(images, model, caller, _left(params, caller.context))
        if query.whole:
            self._refuse_bad(params, images)
        caller.lease.take_for_answer(SCORE_BYTES * len(images) * params.values)
        left = _left(params, caller.context)
        # In their place, so that nothing holds the files any more.
        images[:] = await self._sandbox.decode(images, model.spec, caller, left)
        caller.context.end_stage("parse")
        if query.whole:
            self._refuse_bad(params, images)

    def _refuse_bad(self, params: ClassifyParams, images: Sequence[CheckedImage]) -> None:
        """Fail a request where the header check or the sandbox refused an image."""
        bad = [index for index, image in enumerate(images) if not isinstance(image, tuple)]
        if bad:
            counts = Counter(outcome_label(images[index]) for index in bad)
            self._dispatcher.count(params, counts + Counter(rejected=len(images) - len(bad)))
            raise image_error(images[bad[0]], bad[0], len(images))


def image_error(failure: object, index: int, count: int) -> ServiceError:
    """Make the error of one of `count` images the error of its request."""
    code, message = getattr(failure, "code", "internal"), getattr(failure, "message", "")
    retry = getattr(failure, "retry_after_seconds", None)
    return ServiceError(code, f"image {index}: {message}" if count > 1 else message, retry_after_seconds=retry)


def _left(params: ClassifyParams, context: RequestContext) -> float:
    """Seconds until the answer is due."""
    return context.started + params.timeout_seconds - time.perf_counter()
