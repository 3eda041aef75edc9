"""The running service: its models, queue and engine, and where it is in its life."""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..loaders.info import ImageInfo
from .batcher import Batcher
from .body import HeldBytes
from .catalogue import Catalogue
from .device import means_gpu
from .engine import Engine
from .errors import ServiceError
from .live_metrics import collect_decoders, collect_engine
from .memory import StageCpu, collect_gpu_memory, collect_process_memory
from .metrics import CPU_STAGES, Metrics
from .outcome import BatchResult
from .pipeline import Pipeline, decoded_by
from .rollout import Rollout
from .served import OpenModel, ServedModel, open_model
from .settings import OFF, Settings
from .ticket import Batch, Priority, Ticket
from .watch import Watch

logger = logging.getLogger("milkweed.service")

LAG_TICK_SECONDS = 0.1


class Service:
    """Made once by `create_app` and passed to whoever needs it. Belongs to the event loop, where not said.

    Args:
        bundles: where each served model lies, by name; the first one answers requests that name none.
        open_model: makes a warm model of a bundle, on the engine thread.
    """

    def __init__(self, settings: Settings, bundles: Mapping[str, Path], *, open_model: OpenModel = open_model) -> None:
        if not bundles and settings.repository == OFF:
            raise ValueError("no bundle to serve")
        self.settings = settings
        self.bundles = dict(bundles)
        self.metrics = Metrics()
        self.held = HeldBytes(settings.max_held_bytes)
        self.batcher = Batcher(max_queue_images=settings.max_queue_images, max_queue_pixels=settings.max_queue_pixels)
        self.rollout = Rollout(
            settings, self.batcher, open_model=open_model, introduce=self._describe_model, forget=self._forget_model
        )
        self.engine = Engine(
            self.batcher,
            prepare=self._open_models,
            deliver=self._deliver,
            # On a CPU decoding ahead would only take cores from the forward.
            overlap=settings.overlap == "on" or (settings.overlap == "auto" and means_gpu(settings.device)),
            on_removed=self.rollout.removed,
            on_end=self._engine_ended,
            stall_seconds=settings.engine_stall_seconds,
        )
        self.rollout.serve_on(self.engine)
        self.watch: Watch | None = None
        if settings.repository != OFF:
            self.watch = Watch(
                Path(settings.repository),
                self.rollout,
                keep=settings.keep_versions,
                failed=lambda name: self.metrics.load_failures.labels(name).inc(),
            )
        self.draining = False
        self._accepting = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lag_timer: asyncio.TimerHandle | None = None
        self._lag = self._due = 0.0
        self._tickets: set[Ticket] = set()
        self._on_ended: Callable[[], None] = lambda: None
        self._cpu = StageCpu(CPU_STAGES)
        for collect in (
            *(self.batcher.collect_metrics, self._cpu.collect, lambda: collect_engine(self.engine, self.models)),
            *(collect_process_memory, collect_gpu_memory, lambda: collect_decoders(self.models)),
        ):
            self.metrics.collect_with(collect)
        self.metrics.held_bytes.set_function(lambda: self.held.total)

    @property
    def models(self) -> Catalogue:
        """What is served now."""
        return self.rollout.catalogue

    def start(
        self,
        on_prepared: Callable[[BaseException | None], None] | None = None,
        on_ended: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the engine, which loads the models; returns at once.

        Args:
            on_prepared: called on the event loop once the models are warm, or with why they are not.
            on_ended: called on the event loop when the engine has ended though nobody stopped it.
        """
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        loop = self._loop
        self.engine.prepared.add_done_callback(
            lambda done: loop.call_soon_threadsafe(on_prepared or _log_failure, done.exception())
        )
        if self.watch is not None and self.settings.repository_seconds:
            self.watch.start(self.settings.repository_seconds)
        self.engine.start()
        self._tick(loop.time())

    def begin_drain(self) -> None:
        """Say not ready, but go on: whoever routes requests here needs a moment to hear of it."""
        self.draining = True

    def stop_accepting(self) -> None:
        """Refuse new requests; those in flight go on."""
        self.draining = True
        self._accepting = False

    def abandon(self) -> None:
        """Fail every request in flight: the time to drain is over."""
        self.batcher.abandon()
        for ticket in list(self._tickets):
            ticket.fail(ServiceError("draining", "the server stopped before the answer", retry_after_seconds=1))

    async def stop(self) -> bool:
        """End the engine; False when it did not end in time."""
        self.stop_accepting()
        self.rollout.close()
        if self.watch is not None:
            self.watch.stop()
        if self._lag_timer is not None:
            self._lag_timer.cancel()
        return await asyncio.to_thread(self.engine.stop, self.settings.drain_seconds)

    def check_accepting(self) -> None:
        """Raises ServiceError `not_ready` or `draining` where a request cannot be taken."""
        if not self._accepting:
            raise ServiceError("draining", "the server is shutting down", retry_after_seconds=1, close=True)
        if not self.models:
            raise ServiceError("not_ready", "the models are loading", retry_after_seconds=1)
        if self.engine.ended:
            raise ServiceError("not_ready", "the engine has ended", retry_after_seconds=5)

    def check_ready(self) -> None:
        """Raises ServiceError where no new traffic should be routed here."""
        if self.draining:
            raise ServiceError("draining", "the server is shutting down", retry_after_seconds=1)
        self.check_accepting()
        if not self.engine.alive:
            raise ServiceError("not_ready", "the engine does not answer", retry_after_seconds=5)

    def check_alive(self) -> None:
        """Raises ServiceError where only a restart of the process can help."""
        if self.draining:
            return
        if not self.engine.alive:
            raise ServiceError("internal", "the engine does not answer")
        for name, model in self.models.items():
            trouble = model.pipeline.loader.health.trouble
            if trouble is not None:
                raise ServiceError("internal", f"the decoder of {name} is lost: {trouble}")

    def submit(self, ticket: Ticket, images: Sequence[tuple[int, bytes, ImageInfo]]) -> None:
        """Queue a request.

        Raises:
            ServiceError: `overloaded` with an estimate of when there is room, `draining`.
        """
        try:
            self.batcher.submit(ticket, images, unseen_seconds=2 * self.lag_seconds())
        except ServiceError as error:
            error.retry_after_seconds = self.retry_after_seconds()
            raise
        self._tickets.add(ticket)

    def forget(self, ticket: Ticket) -> None:
        """A request is over, answered or not; what of it still waits is dropped."""
        self._tickets.discard(ticket)
        if ticket.missing:
            self.batcher.discard(ticket)
        else:
            self.batcher.answered()

    def lag_seconds(self) -> float:
        """How late the event loop is: so long a request has waited before it was seen, and its answer will again."""
        overdue = self._loop.time() - self._due if self._loop is not None and self._due else 0.0
        return max(self._lag, overdue)

    def check_time(self, timeout_seconds: float, priority: Priority) -> None:
        """Raises ServiceError `overloaded` where a request is late already, before any of it is read."""
        late = 2 * self.lag_seconds() + self.batcher.wait_seconds(priority)
        if late > timeout_seconds:
            raise ServiceError(
                "overloaded",
                f"what is before this request takes {late * 1e3:.0f} ms, it may take {timeout_seconds * 1e3:.0f} ms",
                retry_after_seconds=self.retry_after_seconds(),
            )

    def retry_after_seconds(self) -> int:
        """When what runs and waits now should be done."""
        return max(1, min(60, math.ceil(self.batcher.wait_seconds())))

    def _open_models(self) -> dict[str, Pipeline]:
        """On the engine thread: every model, loaded and warm; published together, so that ready means all."""
        bundles = [(name, "", path) for name, path in self.bundles.items()]
        if self.watch is not None:
            found = [each for versions in self.watch.first_look(self.bundles) for each in versions]
            bundles += [(each.name, each.number, each.path) for each in found]
        return self.rollout.open_all(bundles)

    def _describe_model(self, model: ServedModel) -> None:
        metrics, version = self.metrics, model.version
        metrics.model(model.name)
        for form, value in model.parameter_bytes.items():
            metrics.parameter_bytes.labels(model.name, version, form).set(value)
        for kind, count in model.kernel_fallbacks.items():
            metrics.kernel_fallbacks.labels(model.name, version, kind).set(count)
        metrics.load_seconds.labels(model.name, version).set(model.load_seconds)
        metrics.warmup_seconds.labels(model.name, version).set(model.warmup_seconds)
        metrics.model_ready.labels(model.name, version).set(1)
        blocks = sorted({layer.nblocks for layer in model.config.structure.values()})
        metrics.model_info.labels(
            *(model.name, version, model.config.arch, model.dtype, str(model.pipeline.device)),
            *(model.pipeline.loader.name, ",".join(map(str, blocks)) or "0", version),
        ).set(1)

    def _forget_model(self, model: ServedModel) -> None:
        """A version serves no more: its series end, unless the same version serves again."""
        if not any(other.version == model.version for other in self.models.versions(model.name)):
            self.metrics.forget_version(model.name, model.version)

    def _deliver(self, batch: Batch, result: BatchResult | None) -> None:
        """On the engine thread: one hop to the event loop for the whole batch, then the books."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived, batch, result)
        if result is not None:
            self._account(batch, result)

    def _arrived(self, batch: Batch, result: BatchResult | None) -> None:
        for ticket in batch.expired:
            ticket.fail(TimeoutError())
        if result is not None:
            for item, outcome in zip(batch.items, result.outcomes, strict=True):
                item.ticket.put(item.place, outcome, result)

    def _account(self, batch: Batch, result: BatchResult) -> None:
        model = self.rollout.by_key(batch.model)
        for stage, spent in result.cpu_seconds.items():
            self._cpu.add(stage, spent)
        for decoder, format in decoded_by([item.info for item in batch.items], result.decoders):
            self.metrics.decode_backend.labels(decoder, format).inc()
        costs = self.rollout.costs[batch.model]
        costs.observe_decode(len(batch.items), batch.pixels, result.decoded - result.started)
        for item in batch.items:
            ticket = item.ticket
            if ticket.foretold is not None and item.place == len(ticket.outcomes) - 1:
                costs.observe_promise(result.finished - ticket.foretold)
        forward = result.forward
        if forward is not None:
            if forward.computed:
                costs.observe(forward.computed, result.forwarded - result.launched)
            bound = self.metrics.model(model.name)
            full = forward.images >= model.max_batch_size
            bound.batch_size.observe(forward.images)
            bound.batches["full" if full else batch.release].inc()
            bound.padding.inc(forward.padding)
            self.metrics.engine_busy.labels(str(model.pipeline.device)).inc(forward.busy_seconds)

    def _engine_ended(self) -> None:
        """On the engine thread: nobody who waits shall wait for nothing."""
        loop = self._loop
        if self._accepting and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._fail_all)
            loop.call_soon_threadsafe(self._on_ended)

    def _fail_all(self) -> None:
        self.batcher.abandon()
        for ticket in list(self._tickets):
            ticket.fail(ServiceError("not_ready", "the engine has ended", retry_after_seconds=5))

    def _tick(self, due: float) -> None:
        """Measure how late the loop is, on a timer of its own."""
        assert self._loop is not None
        now = self._loop.time()
        self._lag = max(0.0, now - due)
        self.metrics.loop_lag.observe(self._lag)
        self._due = due = now + LAG_TICK_SECONDS
        self._lag_timer = self._loop.call_at(due, self._tick, due)


def _log_failure(error: BaseException | None) -> None:
    if error is not None:
        logger.error("the models could not be loaded: %s", error)
