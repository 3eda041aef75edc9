"""Dispatcher: queues the images of a request and waits for its last result, or until nobody waits for it.

Every protocol that brings images comes here, so that deadlines, departed callers and metrics are the same for all.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ...inference.results import TopClasses
from ...loaders.headers.info import ImageInfo
from ..errors import ServiceError
from ..repository.served_model import ServedModel
from ..scheduler.request import Listener, Outcome, Priority, Request, outcome_label
from ..scheduler.scheduler import Scheduler
from ..telemetry.context import RequestContext
from ..telemetry.loop_lag import LoopLag
from ..telemetry.metrics import Metrics
from .caller import Caller, CheckedImage
from .params import ClassifyParams
from .shadows import Shadows


class Dispatcher:
    """Belongs to the event loop. `lag`: of that loop, which no estimate of the scheduler's contains. `shadows`: see
    some of the images that are answered."""

    def __init__(self, scheduler: Scheduler, metrics: Metrics, lag: LoopLag, shadows: Shadows) -> None:
        self._scheduler, self._metrics, self._lag, self._shadows = scheduler, metrics, lag, shadows
        self.requests: set[Request] = set()
        """Requests that are queued or computed."""

    def check_time(self, timeout_seconds: float, priority: Priority) -> None:
        """Raises ServiceError `overloaded` where a request is late already, before any of it is read."""
        late = 2 * self._lag.seconds() + self._scheduler.wait_seconds(priority)
        if late > timeout_seconds:
            raise ServiceError(
                "overloaded",
                f"what is before this request takes {late * 1e3:.0f} ms, it may take {timeout_seconds * 1e3:.0f} ms",
                retry_after_seconds=self._retry_after_seconds(),
            )

    async def classify(self, params: ClassifyParams, images: Sequence[CheckedImage], caller: Caller) -> list[Outcome]:
        """Queue the images, wait for the engine, and count what became of each; mark the stages in the engine.

        Raises ServiceError `overloaded`, `draining`, `not_ready`; ClientDisconnected where nobody waits any more;
        TimeoutError where the deadline passed in the queue.
        """
        request, waiter = self.submit(params, images, caller)
        try:
            if request.pending:
                await caller.wait(waiter)
        except BaseException as error:
            self.count(params, {outcome_label(error): len(images)})
            raise
        finally:
            self.finish(request)
        self._mark_engine(params.model, request, caller.context)
        outcomes = [outcome for outcome in request.outcomes if outcome is not None]
        self.count(params, Counter(map(outcome_label, outcomes)))
        return outcomes

    def submit(
        self, params: ClassifyParams, images: Sequence[CheckedImage], caller: Caller, listener: Listener | None = None
    ) -> tuple[Request, "asyncio.Future[None]"]:
        """Queue the images whose headers passed, all or none; `finish` has to be called. Also returns what wakes when
        the last of them is done. Raises ServiceError `overloaded` with an estimate of when there is room, `draining`.
        """
        model, context = params.model, caller.context
        context.note_request(model.name, len(images))
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        top_k, embeds = (params.top_k, params.embedding is not None) if params.head is None else (1, True)
        request = Request(
            *(model.key, top_k, context.started + params.timeout_seconds, waiter, len(images)),
            *(context.caller, params.priority, context.flow, listener, embeds),
        )
        checked: list[tuple[int, bytes, ImageInfo]] = []
        for index, image in enumerate(images):
            if isinstance(image, tuple):
                checked.append((index, *image))
            else:
                request.store(index, image)
        if checked:
            if params.classes:
                self._shadows.sample(request, model, checked)
            try:
                self._scheduler.submit(request, checked, unseen_seconds=2 * self._lag.seconds())
            except ServiceError as error:
                error.retry_after_seconds = self._retry_after_seconds()
                self.count(params, {outcome_label(error): len(images)})
                raise
            self.requests.add(request)
        return request, waiter

    def finish(self, request: Request) -> None:
        """A request is over, answered or not; what of it still waits is dropped."""
        if request not in self.requests:
            return  # nothing of it was queued
        self.requests.discard(request)
        if request.pending:
            self._scheduler.cancel(request)
        else:
            self._scheduler.answered()
            for index, offers in request.sampled.items():
                if isinstance(answer := request.outcomes[index], TopClasses):
                    for offer in offers:
                        offer(answer)

    def count(self, params: ClassifyParams, outcomes: Mapping[str, int]) -> None:
        """Count images by how they ended."""
        name, head = params.model.name, params.head
        images = self._metrics.model(name).images
        if head is not None and outcomes.get("ok"):
            self._metrics.head_images.labels(name, head.name, head.head.version).inc(outcomes["ok"])
        for outcome, count in outcomes.items():
            images[outcome].inc(count)

    def fail(self, requests: Iterable[Request], error: Exception) -> None:
        """Answer requests with one error."""
        for request in requests:
            request.fail(error)

    def fail_all(self, error: ServiceError) -> None:
        """Answer every request in flight with one error."""
        self.fail({*self._scheduler.abandon(), *self.requests}, error)

    def _retry_after_seconds(self) -> int:
        """When what runs and waits now should be done."""
        return max(1, min(60, math.ceil(self._scheduler.wait_seconds())))

    def _mark_engine(self, model: ServedModel, request: Request, context: RequestContext) -> None:
        """The stages in the engine: of the batch that completed the request; waiting for others is queue."""
        result = request.last
        if result is None:
            return
        stages = context.stages
        stages.queue, stages.decode, stages.ready = result.started, result.decoded, result.launched
        stages.forward, stages.postprocess = result.forwarded, result.finished
        context.end_stage("deliver")
        context.model_metrics = self._metrics.model(model.name)
