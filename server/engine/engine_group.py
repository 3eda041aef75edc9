"""Engines: one for each device, all pulling from one queue; what they are together to the rest of the service."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future

import torch

from ...inference.device import device_names, usable_cores
from ...inference.forward import plan_lanes
from ...inference.pipeline import Pipeline
from ..config.settings import Settings
from ..scheduler.scheduler import Scheduler
from .engine import Deliver, Engine

logger = logging.getLogger("milkweed.engines")

Pipelines = Mapping[int, Pipeline]
"""Of one model, by the engine that runs it."""


class EngineGroup:
    """Each has its own thread, its own pipeline of every model, its own decoders; none waits for another.

    Args:
        batcher: the queue that all pull from, made for as many.
        devices: as settings name them, resolved.
        open_all: loads and warms the models, by key; runs on the first engine's thread, the others wait for it.
        deliver: takes each batch away; called on the engines' threads.
        on_removed: called with the key of a model and an engine's place, its pipeline there being closed.
        on_end: called on an engine's thread once the last of them has ended, for whatever reason.
    """

    def __init__(
        self,
        settings: Settings,
        batcher: Scheduler,
        devices: Sequence[torch.device],
        *,
        open_all: Callable[[], Mapping[str, Pipelines]],
        deliver: Deliver,
        on_removed: Callable[[str, int], None],
        on_end: Callable[[], None],
    ) -> None:
        self.names = device_names(devices)
        self.prepared: Future[None] = Future()
        self._settings, self._devices = settings, tuple(devices)
        self._batcher, self._open_all = batcher, open_all
        self._removed, self._on_end = on_removed, on_end
        self._opened: Future[Mapping[str, Pipelines]] = Future()
        self._lock = threading.Lock()
        self._unprepared = set(range(len(devices)))
        self._going = set(range(len(devices)))
        self.each = tuple(self._engine(place, device, deliver) for place, device in enumerate(devices))

    def __len__(self) -> int:
        return len(self.each)

    def start(self) -> None:
        """Start the threads; `prepared` resolves when the models are warm on all devices, or fails as one failed."""
        for engine in self.each:
            engine.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Close the queue, let the engines finish what waits; False when they did not end in time."""
        self._batcher.close()
        end = time.monotonic() + timeout_seconds
        return all(engine.stop(max(0.0, end - time.monotonic())) for engine in self.each)

    def add(self, key: str, pipelines: Pipelines) -> set[int]:
        """Compute a model from now on; the engines that do. Where one has ended meanwhile, its pipeline is closed."""
        taken = {place for place, pipeline in pipelines.items() if self.each[place].add(key, pipeline)}
        for place in pipelines.keys() - taken:
            pipelines[place].close()
        return taken

    def share_of(self, settings: Settings, place: int) -> Settings:
        """What a model is opened with on one of them."""
        return share_of(settings, self._devices[place], len(self._devices))

    def going(self) -> Iterator[int]:
        """Places of those that have not ended."""
        return (place for place, engine in enumerate(self.each) if not engine.ended)

    @property
    def alive(self) -> bool:
        """Whether any engine answers."""
        return any(engine.alive for engine in self.each)

    @property
    def ended(self) -> bool:
        """Whether all have ended."""
        return all(engine.ended for engine in self.each)

    @property
    def trouble(self) -> str | None:
        """In words, the engines that do not answer."""
        lost = [name for name, engine in zip(self.names, self.each, strict=True) if not engine.alive]
        if not lost:
            return None
        return "the engine does not answer" if len(self) == 1 else f"no answer from the engine on {', '.join(lost)}"

    @property
    def decoded_images(self) -> int:
        """That wait for a device."""
        return sum(engine.decoded_images for engine in self.each)

    def silent_seconds(self) -> float:
        """The longest time since an engine's last sign of life; 0 while they are idle."""
        return max(engine.silent_seconds() for engine in self.each)

    def _engine(self, place: int, device: torch.device, deliver: Deliver) -> Engine:
        settings = self._settings
        engine = Engine(
            self._batcher,
            prepare=lambda: self._prepare(place),
            deliver=deliver,
            # On a CPU decoding ahead would only take cores from the forward.
            overlap=settings.overlap == "on" or (settings.overlap == "auto" and device.type == "cuda"),
            on_removed=lambda key: self._removed(key, place),
            on_end=lambda: self._end(place),
            expendable=lambda: any(each.alive for other, each in enumerate(self.each) if other != place),
            stall_seconds=settings.engine_stall_seconds,
            place=place,
            device=device,
        )
        engine.prepared.add_done_callback(lambda done: self._has_prepared(place, done.exception()))
        return engine

    def _prepare(self, place: int) -> dict[str, Pipeline]:
        if place == 0:
            try:
                self._opened.set_result(self._open_all())
            except BaseException as error:
                self._opened.set_exception(error)
        return {key: pipelines[place] for key, pipelines in self._opened.result().items()}

    def _has_prepared(self, place: int, error: BaseException | None) -> None:
        with self._lock:
            self._unprepared.discard(place)
            last = not self._unprepared
        if not last:
            return
        self._opened = Future()  # or what serves first would be held for ever
        if error is None:
            self.prepared.set_result(None)
        else:
            self.prepared.set_exception(error)  # they all fail as the first did

    def _end(self, place: int) -> None:
        """On an engine's thread: the others go on without it."""
        self._batcher.leave(place)
        with self._lock:
            self._going.discard(place)
            others = [self.names[other] for other in sorted(self._going)]
        if not others:
            self._on_end()
        elif not self._batcher.closed:
            logger.error("the engine on %s has ended, only a restart brings it back: %s", self.names[place], others)


def share_of(settings: Settings, device: torch.device, engines: int) -> Settings:
    """What the models of one engine are opened with: its device, and its part of the threads."""
    if engines == 1:
        return settings
    cores = usable_cores()
    share: dict[str, object] = {
        "device": str(device),
        "decode_threads": max(1, (settings.decode_threads or cores) // engines),
    }
    if device.type == "cpu":
        plan = plan_lanes(
            device,
            0,
            lanes=max(1, settings.lanes // engines) if settings.lanes else 0,
            threads=settings.threads_per_lane,
            cores=max(1, cores // engines),
        )
        share |= {"lanes": plan.lanes, "threads_per_lane": plan.threads}
    return settings.model_copy(update=share)
