"""The running service: its models, queue and engines, where it is in its life, and what a protocol asks of it."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from ...inference.device import resolve_devices
from ...inference.results import BatchResult
from ..config.settings import OFF, Settings
from ..engine.collectors import collect_decoders, collect_engines
from ..engine.engine_group import EngineGroup, Pipelines
from ..engine.events import EngineEvents
from ..errors import ServiceError
from ..http.body_budget import BodyBudget
from ..http.parser_threads import ParserThreads, start_thread
from ..repository.heads import ServedHeads
from ..repository.index import ModelIndex
from ..repository.open import opening
from ..repository.served_model import OpenModel, ServedModel, open_tried
from ..scheduler.request import Batch, Request
from ..scheduler.scheduler import Scheduler
from ..telemetry.loop_lag import LoopLag
from ..telemetry.metrics import CPU_STAGES, Metrics, exposition
from ..telemetry.statistics import ModelStatistics, count_answers
from ..telemetry.system_metrics import StageCpu, collect_container_memory, collect_gpu_memory, collect_process_memory
from .dispatcher import Dispatcher
from .fetched_images import FetchedImages
from .inference_handler import InferenceHandler
from .lifecycle import ModelLifecycle
from .loaded_models import LoadedModels
from .model_metrics import observe_batch, record_batch
from .poller import RepositoryPoller
from .sandboxed_images import SandboxedImages
from .shadows import Shadows

logger = logging.getLogger("milkweed.service")

Checks = Mapping[str, Callable[[], None]]
"""Each raises ServiceError where the answer is no."""


class Service(EngineEvents):
    """Belongs to the event loop, except for what the engines tell it (`EngineEvents`).

    `prepared` resolves when the models are warm, or fails as their loading did.

    Args:
        bundles: where each served model lies, by name; the first one answers requests that name none.
        open_model: makes a warm model of a bundle, on the first engine's thread.
        on_prepared: called on the event loop once the models are warm, or with why they are not.
        on_ended: called on the event loop when the last engine has ended though nobody stopped it.

    Raises:
        DeviceError: a device is not there.
        ValueError: hosts to fetch from are named, and no authorities are there to check their certificates.
    """

    def __init__(
        self,
        settings: Settings,
        bundles: Mapping[str, Path],
        *,
        open_model: OpenModel = open_tried,
        on_prepared: Callable[[BaseException | None], None] | None = None,
        on_ended: Callable[[], None] = lambda: None,
    ) -> None:
        if not bundles and settings.repository == OFF:
            raise ValueError("no bundle to serve")
        self.settings, self.metrics, self.bundles = settings, Metrics(), dict(bundles)
        self.body_budget, self.draining, self._accepting = BodyBudget(settings.max_held_bytes), False, True
        self._loop: asyncio.AbstractEventLoop | None = None
        self.lag, self.parsers, self._scraping = LoopLag(self.metrics.loop_lag), ParserThreads(), asyncio.Lock()
        devices = resolve_devices(settings.device)
        limits = {name: getattr(settings, name) for name in ("max_queue_images", "max_queue_pixels")}
        self.scheduler = Scheduler(**limits, engines=len(devices))
        self.heads, self.loaded, self.prepared = ServedHeads(self.metrics.head_images), LoadedModels(), Future[None]()
        self.engines = EngineGroup(settings, self.scheduler, devices, self)
        self.lifecycle = ModelLifecycle(settings, self.scheduler, self.engines, self.loaded, open_model, self.metrics)
        self.shadows = Shadows(settings, self.scheduler, self.lifecycle, self.body_budget, self.metrics)
        self.dispatcher = Dispatcher(self.scheduler, self.metrics, self.lag, self.shadows)
        self.poller = None if settings.repository == OFF else RepositoryPoller(settings, self.lifecycle)
        self.fetched_images = FetchedImages(settings, self.parsers)
        self.sandboxed_images = SandboxedImages(settings, self.body_budget)
        images = self.parsers, self.fetched_images, self.sandboxed_images
        self.handler = InferenceHandler(self.lifecycle.leases, self.dispatcher, *images)
        self._cpu, self._on_prepared, self._on_ended = StageCpu(CPU_STAGES), on_prepared or _log_failure, on_ended
        self._show_metrics()

    def _show_metrics(self) -> None:
        """Have the registry read at each scrape what others count."""
        self.metrics.held_bytes.set_function(lambda: self.body_budget.total)
        for collect in (
            *(self.scheduler.collect_metrics, self._cpu.collect, lambda: collect_engines(self.engines)),
            *(collect_process_memory, collect_container_memory, collect_gpu_memory),
            *(lambda: collect_decoders(self.models), self.sandboxed_images.collect),
        ):
            self.metrics.collect_with(collect)

    @property
    def models(self) -> ModelIndex:
        """What is served now."""
        return self.lifecycle.index

    def find_version(self, name: str, version: str) -> ServedModel:
        """Find the model of a name, which may be an alias; an empty `version` means the default one. Raises
        ServiceError `not_ready` while it is loaded, `unknown_model` where there is no such model or version."""
        if not self.models and (name in self.bundles or name in self.models.aliases):
            raise ServiceError("not_ready", "the models are loading", retry_after_seconds=1)
        return self.models.find(name, version or None)

    def start(self) -> None:
        """Start the engines, which load the models; returns at once."""
        loop = self._loop = asyncio.get_running_loop()
        self.lag.start()

        def prepared(error: BaseException | None) -> None:
            # Not before: a look would open what is being opened, and serve it before the rest is there.
            if self.poller is not None and self.settings.repository_seconds and error is None and self._accepting:
                self.poller.start(self.settings.repository_seconds)
            self._on_prepared(error)

        self.prepared.add_done_callback(lambda done: loop.call_soon_threadsafe(prepared, done.exception()))
        self.engines.start(self._open_models)

    def begin_drain(self) -> None:
        """Say not ready, but go on: whoever routes requests here needs a moment to hear of it."""
        self.draining = True

    def stop_accepting(self) -> None:
        """Refuse new requests; those in flight go on."""
        self.draining = True
        self._accepting = False
        self.shadows.close()

    def abandon(self) -> None:
        """Fail every request in flight: the time to drain is over."""
        self.dispatcher.fail_all(
            ServiceError("draining", "the server stopped before the answer", retry_after_seconds=1)
        )

    async def stop(self) -> bool:
        """End the engines; False when they did not end in time."""
        self.stop_accepting()
        self.lifecycle.close()
        if self.poller is not None:
            self.poller.stop()
        self.lag.stop()
        self.fetched_images.close()
        self.sandboxed_images.close()
        self.parsers.close()
        return await asyncio.to_thread(self.engines.stop, self.settings.drain_seconds)

    def check_accepting(self) -> None:
        """Raises ServiceError `not_ready` or `draining` where a request cannot be taken."""
        if not self._accepting:
            raise ServiceError("draining", "the server is shutting down", retry_after_seconds=1, close=True)
        if not self.models:
            why = "no model could be loaded" if self.prepared.done() else "the models are loading"
            raise ServiceError("not_ready", why, retry_after_seconds=1)
        if self.engines.ended:
            raise ServiceError("not_ready", "the engine has ended", retry_after_seconds=5)

    def check_ready(self) -> None:
        """Raises ServiceError where no new traffic should be routed here."""
        if self.draining:
            raise ServiceError("draining", "the server is shutting down", retry_after_seconds=1)
        self.check_accepting()
        if not self.engines.alive:
            raise ServiceError("not_ready", "the engine does not answer", retry_after_seconds=5)

    @property
    def checks(self) -> Checks:
        """What probes ask, by name."""
        return {"livez": self.check_alive, "readyz": self.check_ready}

    def check_alive(self) -> None:
        """Raises ServiceError where only a restart of the process brings back what is lost, though others go on."""
        error = None if self.draining else next(self._errors(), None)
        if error is not None:
            raise ServiceError("internal", error)

    def _errors(self) -> Iterator[str]:
        if self.engines.error is not None:
            yield self.engines.error
        for name, model in self.models.items():
            for pipeline in model.pipelines.values():
                if pipeline.loader.health.error is not None:
                    yield f"the decoder of {name} is lost: {pipeline.loader.health.error}"

    async def exposition(self, accept: str, gzipped: bool) -> tuple[bytes, str]:
        """The metrics as text, and its content type; one scrape at a time has a thread, for some milliseconds."""
        made = partial(exposition, self.metrics.registry, accept, gzipped)
        async with self._scraping:
            return await asyncio.shield(start_thread(made, "milkweed-scrape"))

    async def statistics(self) -> dict[str, ModelStatistics]:
        """What each model has answered."""
        counted = (self.metrics.stage_duration, self.metrics.batch_size, self.metrics.images)
        return count_answers(family for metric in counted for family in metric.collect())

    def _open_models(self) -> Mapping[str, Pipelines]:
        """Load every model, for the first engine's thread; publish all of them together, so that ready means all."""
        in_repository = {} if self.poller is None else self.poller.first_poll(self.bundles)
        self.lifecycle.check_names([*self.bundles, *in_repository])
        stored = (bundle.path for versions in in_repository.values() for bundle in versions)
        with opening([*self.bundles.values(), *stored], self.settings) as calls:
            opened = calls(self.lifecycle.open_first, self.bundles, self.bundles.values())
            models = [model for models in opened for model in models]
            if self.poller is not None:
                models += self.poller.open_first(in_repository, calls)
        self.heads.open(self.settings.heads, models, strict=not self.settings.start_with_failures)
        return self.lifecycle.publish(models)

    def ready(self, engine_id: int, error: BaseException | None) -> None:
        """Note, on an engine's thread, that the models are warm on all devices, or cannot be."""
        if error is None:
            self.prepared.set_result(None)
        else:
            self.prepared.set_exception(error)

    def batch_done(self, batch: Batch, result: BatchResult) -> None:
        """Deliver a batch, on an engine's thread: one hop to the event loop, then metrics and cost model."""
        self._call_soon(self._set_results, batch, result)
        for stage, spent in result.cpu_seconds.items():
            self._cpu.add(stage, spent)
        loaded = self.loaded[batch.model]
        observe_batch(loaded.costs[batch.engine_id], batch, result)
        record_batch(self.metrics, loaded.model, self.engines.names[batch.engine_id], batch, result)

    def requests_expired(self, requests: Sequence[Request]) -> None:
        """Tell on an engine's thread whoever waits for these that their time is over."""
        self._call_soon(self.dispatcher.fail, requests, TimeoutError())

    def model_removed(self, engine_id: int, key: str) -> None:
        """Note, on an engine's thread, that it has closed its pipeline of a model."""
        self.loaded.remove_engine(key, engine_id)

    def engine_ended(self, engine_id: int) -> None:
        """Fail all requests that wait, on the last engine's thread: nobody would answer them."""
        if self._accepting:
            ended = ServiceError("not_ready", "the engine has ended", retry_after_seconds=5)
            self._call_soon(self.dispatcher.fail_all, ended)
            self._call_soon(self._on_ended)

    def _call_soon(self, call: Callable[..., None], *args: Any) -> None:
        """Call on the event loop, from any thread, unless the loop has ended."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *args)

    def _set_results(self, batch: Batch, result: BatchResult) -> None:
        for item, outcome in zip(batch.items, result.outcomes, strict=True):
            item.request.set_result(item.index, outcome, result)


def _log_failure(error: BaseException | None) -> None:
    if error is not None:
        logger.error("the models could not be loaded: %s", error)
