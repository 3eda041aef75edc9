"""The running service: its models, queue and engines, where it is in its life, and what a protocol asks of it."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from ...inference.device import resolve_devices
from ...inference.results import BatchResult
from ...loaders.headers.info import ImageInfo
from ..config.image_limits import image_limits
from ..config.settings import OFF, Settings
from ..engine.batch_record import forget_model, observe_batch, record_batch, record_model
from ..engine.engine_group import EngineGroup, Pipelines
from ..errors import ServiceError
from ..http.body import BodyBudget
from ..http.parsers import Parsers
from ..repository.index import ModelIndex
from ..repository.model_info import ModelInfo
from ..repository.served_model import OpenModel, ServedModel, open_model
from ..scheduler.request import Batch, Priority, Request
from ..scheduler.scheduler import Scheduler
from ..telemetry.container_memory import collect_container_memory
from ..telemetry.device_metrics import collect_decoders, collect_engines
from ..telemetry.exposition import exposition
from ..telemetry.loop_lag import LoopLag
from ..telemetry.memory import StageCpu, collect_gpu_memory, collect_process_memory
from ..telemetry.metrics import CPU_STAGES, Metrics
from ..telemetry.statistics import ModelStatistics, count_answers
from .lifecycle import ModelLifecycle
from .poller import RepositoryPoller
from .response_cache import ResponseCache
from .sandboxed_images import SandboxedImages
from .submit import Answer, submit_and_wait

logger = logging.getLogger("milkweed.service")


class Service:
    """Belongs to the event loop, where not said.

    Args:
        bundles: where each served model lies, by name; the first one answers requests that name none.
        open_model: makes a warm model of a bundle, on the first engine's thread.

    Raises:
        DeviceError: a device is not there.
    """

    def __init__(self, settings: Settings, bundles: Mapping[str, Path], *, open_model: OpenModel = open_model) -> None:
        if not bundles and settings.repository == OFF:
            raise ValueError("no bundle to serve")
        self.settings, self.metrics = settings, Metrics()
        self.held = BodyBudget(settings.max_held_bytes)
        self.bundles = dict(bundles)
        self.draining = False
        self._accepting = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tickets: set[Request] = set()
        self.lag = LoopLag(self.metrics.loop_lag)
        self.parsers = Parsers()
        self.rare_images = SandboxedImages(image_limits(settings))
        self.answer: Answer = partial(submit_and_wait, self)
        if settings.cache_bytes:
            self.answer = ResponseCache(settings.cache_bytes, self.answer, self.parsers, self.metrics.registry)
        devices = resolve_devices(settings.device)
        self.batcher = Scheduler(
            max_queue_images=settings.max_queue_images,
            max_queue_pixels=settings.max_queue_pixels,
            engines=len(devices),
        )
        introduce = partial(record_model, self.metrics, settings)
        self.rollout = ModelLifecycle(
            settings, self.batcher, open_model=open_model, introduce=introduce, forget=self._forget_model
        )
        self.engines = EngineGroup(
            settings,
            self.batcher,
            devices,
            open_all=self._open_models,
            deliver=self._deliver,
            on_removed=self.rollout.removed,
            on_end=self._engines_ended,
        )
        self.rollout.serve_on(self.engines)
        self.watch: RepositoryPoller | None = None
        if settings.repository != OFF:
            self.watch = RepositoryPoller(
                Path(settings.repository),
                self.rollout,
                keep=settings.keep_versions,
                failed=lambda name: self.metrics.load_failures.labels(name).inc(),
            )
        self._on_ended: Callable[[], None] = lambda: None
        self._cpu = StageCpu(CPU_STAGES)
        self.metrics.held_bytes.set_function(lambda: self.held.total)
        for collect in (
            *(self.batcher.collect_metrics, self._cpu.collect, lambda: collect_engines(self.engines)),
            *(collect_process_memory, collect_container_memory, collect_gpu_memory),
            *(lambda: collect_decoders(self.models), self.rare_images.collect),
        ):
            self.metrics.collect_with(collect)

    @property
    def models(self) -> ModelIndex[ServedModel]:
        """What is served now."""
        return self.rollout.catalogue

    @property
    def names(self) -> Sequence[str]:
        """Of the bundles given at the start."""
        return list(self.bundles)

    def start(
        self,
        on_prepared: Callable[[BaseException | None], None] | None = None,
        on_ended: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the engines, which load the models; returns at once.

        Args:
            on_prepared: called on the event loop once the models are warm, or with why they are not.
            on_ended: called on the event loop when the last engine has ended though nobody stopped it.
        """
        self._on_ended = on_ended
        loop = self._loop = asyncio.get_running_loop()
        self.lag.start()

        def prepared(error: BaseException | None) -> None:
            # Not before: a look would open what is being opened, and serve it before the rest is there.
            if self.watch is not None and self.settings.repository_seconds and error is None and self._accepting:
                self.watch.start(self.settings.repository_seconds)
            (on_prepared or _log_failure)(error)

        self.engines.prepared.add_done_callback(lambda done: loop.call_soon_threadsafe(prepared, done.exception()))
        self.engines.start()

    def begin_drain(self) -> None:
        """Say not ready, but go on: whoever routes requests here needs a moment to hear of it."""
        self.draining = True

    def stop_accepting(self) -> None:
        """Refuse new requests; those in flight go on."""
        self.draining = True
        self._accepting = False

    def abandon(self) -> None:
        """Fail every request in flight: the time to drain is over."""
        self._fail_all(ServiceError("draining", "the server stopped before the answer", retry_after_seconds=1))

    async def stop(self) -> bool:
        """End the engines; False when they did not end in time."""
        self.stop_accepting()
        self.rollout.close()
        if self.watch is not None:
            self.watch.stop()
        self.lag.stop()
        self.parsers.close()
        self.rare_images.close()
        return await asyncio.to_thread(self.engines.stop, self.settings.drain_seconds)

    def check_accepting(self) -> None:
        """Raises ServiceError `not_ready` or `draining` where a request cannot be taken."""
        if not self._accepting:
            raise ServiceError("draining", "the server is shutting down", retry_after_seconds=1, close=True)
        if not self.models:
            raise ServiceError("not_ready", "the models are loading", retry_after_seconds=1)
        if self.engines.ended:
            raise ServiceError("not_ready", "the engine has ended", retry_after_seconds=5)

    def check_ready(self) -> None:
        """Raises ServiceError where no new traffic should be routed here."""
        if self.draining:
            raise ServiceError("draining", "the server is shutting down", retry_after_seconds=1)
        self.check_accepting()
        if not self.engines.alive:
            raise ServiceError("not_ready", "the engine does not answer", retry_after_seconds=5)

    def check_time(self, timeout_seconds: float, priority: Priority) -> None:
        """Raises ServiceError `overloaded` where a request is late already, before any of it is read."""
        # What a cache knows need not wait; the queue refuses the rest.
        wait = 0.0 if self.settings.cache_bytes else self.wait_seconds(priority)
        late = 2 * self.lag.seconds() + wait
        if late > timeout_seconds:
            raise ServiceError(
                "overloaded",
                f"what is before this request takes {late * 1e3:.0f} ms, it may take {timeout_seconds * 1e3:.0f} ms",
                retry_after_seconds=self.retry_after_seconds(),
            )

    def check_alive(self) -> None:
        """Raises ServiceError where only a restart of the process brings back what is lost, though others go on."""
        trouble = None if self.draining else next(self._troubles(), None)
        if trouble is not None:
            raise ServiceError("internal", trouble)

    def _troubles(self) -> Iterator[str]:
        if self.engines.trouble is not None:
            yield self.engines.trouble
        for name, model in self.models.items():
            for pipeline in model.pipelines:
                if pipeline.loader.health.trouble is not None:
                    yield f"the decoder of {name} is lost: {pipeline.loader.health.trouble}"

    def submit(self, ticket: Request, images: Sequence[tuple[int, bytes, ImageInfo]]) -> None:
        """Queue a request: all of its images or none.

        Raises:
            ServiceError: `overloaded` with an estimate of when there is room, `draining`.
        """
        try:
            self.batcher.submit(ticket, images, unseen_seconds=2 * self.lag.seconds())
        except ServiceError as error:
            error.retry_after_seconds = self.retry_after_seconds()
            raise
        self._tickets.add(ticket)

    def forget(self, ticket: Request) -> None:
        """A request is over, answered or not; what of it still waits is dropped."""
        if ticket not in self._tickets:
            return  # it was refused
        self._tickets.discard(ticket)
        if ticket.missing:
            self.batcher.discard(ticket)
        else:
            self.batcher.answered()

    def using(self, model: ModelInfo) -> AbstractContextManager[None]:
        """Within, a model is in a request's hands and is not let go."""
        return self.rollout.using(model)

    def wait_seconds(self, priority: Priority = "bulk") -> float:
        """When what runs now and waits before a request that came now should be done."""
        return self.batcher.wait_seconds(priority)

    def retry_after_seconds(self) -> int:
        """When what runs and waits now should be done."""
        return max(1, min(60, math.ceil(self.wait_seconds())))

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """The metrics as text, and its content type; reading the process's memory map takes milliseconds."""
        return await asyncio.to_thread(exposition, self.metrics.registry, accept)

    async def statistics(self) -> dict[str, ModelStatistics]:
        """What each model has answered."""
        counted = (self.metrics.stage_duration, self.metrics.batch_size, self.metrics.images)
        return count_answers(family for each in counted for family in each.collect())

    def _open_models(self) -> Mapping[str, Pipelines]:
        """On the first engine's thread: every model, loaded and warm; published together, so that ready means all."""
        found = {} if self.watch is None else self.watch.first_look(self.bundles)
        self.rollout.check_names([*self.bundles, *found])
        models = [self.rollout.open(name, path) for name, path in self.bundles.items()]
        if self.watch is not None:
            models += self.watch.open_first(found)
        return self.rollout.publish(models)

    def _forget_model(self, model: ServedModel) -> None:
        """A version serves no more: its series end, unless the same version serves again."""
        if not any(other.version == model.version for other in self.models.versions(model.name)):
            forget_model(self.metrics, model)

    def _deliver(self, batch: Batch, result: BatchResult | None) -> None:
        """On an engine's thread: one hop to the event loop for the whole batch, then the books."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived, batch, result)
        if result is not None:
            for stage, spent in result.cpu_seconds.items():
                self._cpu.add(stage, spent)
            observe_batch(self.rollout.costs[batch.model][batch.engine], batch, result)
            model, engine = self.rollout.by_key(batch.model), self.engines.names[batch.engine]
            record_batch(self.metrics, model, engine, batch, result)

    def _arrived(self, batch: Batch, result: BatchResult | None) -> None:
        for ticket in batch.expired:
            ticket.fail(TimeoutError())
        if result is not None:
            for item, outcome in zip(batch.items, result.outcomes, strict=True):
                item.ticket.put(item.place, outcome, result)

    def _engines_ended(self) -> None:
        """On the last engine's thread: nobody who waits shall wait for nothing."""
        loop = self._loop
        if self._accepting and loop is not None and not loop.is_closed():
            ended = ServiceError("not_ready", "the engine has ended", retry_after_seconds=5)
            loop.call_soon_threadsafe(self._fail_all, ended)
            loop.call_soon_threadsafe(self._on_ended)

    def _fail_all(self, error: ServiceError) -> None:
        """Answer every request in flight with one error."""
        self.batcher.abandon()
        for ticket in list(self._tickets):
            ticket.fail(error)


def _log_failure(error: BaseException | None) -> None:
    if error is not None:
        logger.error("the models could not be loaded: %s", error)
