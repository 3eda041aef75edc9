"""EngineGroup: one engine for each device, all taking batches from one scheduler."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from ...inference.device import Device, device_names, usable_cores
from ...inference.forward import plan_lanes
from ...inference.pipeline import Pipeline
from ..config.settings import Settings
from ..scheduler.scheduler import Scheduler
from .engine import Engine
from .events import EngineEvents, StateEvents

logger = logging.getLogger("milkweed.engines")

Pipelines = Mapping[int, Pipeline]
"""The pipelines of one model, by engine_id."""


class EngineGroup(StateEvents):
    """Each engine has its own thread, its own pipeline of every model and its own decoders; none waits for another.

    Args:
        scheduler: made for as many engines as there are devices.
        devices: as settings name them, resolved.
        events: hears of each batch and each removed model; of readiness once, when all engines are ready or cannot be;
            and of the end once, when the last engine has ended.
    """

    def __init__(
        self, settings: Settings, scheduler: Scheduler, devices: Sequence[Device], events: EngineEvents
    ) -> None:
        self.names = device_names(devices)
        self._settings, self._devices = settings, tuple(devices)
        self._scheduler, self._events = scheduler, events
        self._opened: Future[Mapping[str, Pipelines]] = Future()
        self._lock = threading.Lock()
        self._unready = set(range(len(devices)))
        self._running = set(range(len(devices)))
        self.engines = tuple(self._engine(engine_id, device) for engine_id, device in enumerate(devices))

    def __len__(self) -> int:
        return len(self.engines)

    def start(self, open_models: Callable[[], Mapping[str, Pipelines]]) -> None:
        """Start the engines. `open_models`: loads and warms the models, by key; it runs on the first engine's thread,
        the others wait."""

        def models_of(engine_id: int) -> dict[str, Pipeline]:
            if engine_id == 0:
                try:
                    self._opened.set_result(open_models())
                except BaseException as error:
                    self._opened.set_exception(error)
            return {key: pipelines[engine_id] for key, pipelines in self._opened.result().items()}

        for engine in self.engines:
            engine.start(partial(models_of, engine.engine_id))

    def stop(self, timeout_seconds: float) -> bool:
        """Close the scheduler and let the engines finish what waits; False when they did not end in time."""
        self._scheduler.close()
        end = time.monotonic() + timeout_seconds
        return all(engine.join(max(0.0, end - time.monotonic())) for engine in self.engines)

    def add(self, key: str, pipelines: Pipelines) -> set[int]:
        """Compute a model from now on; returns the engines that do. The pipeline of one that has ended is closed."""
        active = {engine_id for engine_id, pipeline in pipelines.items() if self.engines[engine_id].add(key, pipeline)}
        for engine_id in pipelines.keys() - active:
            pipelines[engine_id].close()
        return active

    def shares(self, settings: Settings) -> dict[int, Settings]:
        """What a model is opened with, by the engine_id of each engine that has not ended."""
        count = len(self._devices)
        return {e.engine_id: share_of(settings, self._devices[e.engine_id], count) for e in self.engines if not e.ended}

    @property
    def alive(self) -> bool:
        """Whether any engine answers."""
        return any(engine.alive for engine in self.engines)

    @property
    def ended(self) -> bool:
        """Whether all have ended."""
        return all(engine.ended for engine in self.engines)

    @property
    def error(self) -> str | None:
        """Says in words which engines do not answer; None where all do."""
        lost = [name for name, engine in zip(self.names, self.engines, strict=True) if not engine.alive]
        if not lost:
            return None
        return "the engine does not answer" if len(self) == 1 else f"no answer from the engine on {', '.join(lost)}"

    def ready(self, engine_id: int, error: BaseException | None) -> None:
        """Pass on the readiness of the last engine; where one fails, all fail as the first one did."""
        with self._lock:
            self._unready.discard(engine_id)
            last = not self._unready
        if last:
            self._opened = Future()  # it would hold the first models for ever
            self._events.ready(engine_id, error)

    def engine_ended(self, engine_id: int) -> None:
        """Let the others go on without an engine; pass on the end of the last one."""
        self._scheduler.remove_engine(engine_id)
        with self._lock:
            self._running.discard(engine_id)
            others = [self.names[other] for other in sorted(self._running)]
        if not others:
            self._events.engine_ended(engine_id)
        elif not self._scheduler.closed:
            logger.error("the engine on %s has ended, only a restart brings it back: %s", self.names[engine_id], others)

    def _engine(self, engine_id: int, device: Device) -> Engine:
        overlap = self._settings.overlap
        return Engine(
            self._scheduler,
            self._events,
            self,
            engine_id=engine_id,
            device=device,
            # On a CPU decoding ahead would only take cores from the forward.
            overlap=overlap == "on" or (overlap == "auto" and device.type == "cuda"),
            expendable=lambda: any(other.alive for other in self.engines if other.engine_id != engine_id),
            stall_seconds=self._settings.engine_stall_seconds,
        )


def share_of(settings: Settings, device: Device, engines: int) -> Settings:
    """What the models of one engine are opened with: its device, and its part of the threads."""
    if engines == 1:
        return settings
    cores = usable_cores()
    threads = max(1, (settings.decode_threads or cores) // engines)
    share: dict[str, object] = {"device": str(device), "decode_threads": threads}
    if device.type == "cpu":
        plan = plan_lanes(
            device,
            0,
            lanes=max(1, settings.lanes // engines) if settings.lanes else 0,
            threads=settings.threads_per_image,
            cores=max(1, cores // engines),
        )
        share |= {"lanes": plan.lanes, "threads_per_image": plan.threads}
    return settings.model_copy(update=share)
