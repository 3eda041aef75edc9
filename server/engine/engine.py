"""The thread that owns the device, and the one that decodes ahead of it.

Without overlap one thread does both halves of a batch. With it, a second thread collects and decodes while the first
computes; the ring between them is bounded, and neither the event loop nor the device ever waits for a decoder.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

import torch

from ...inference.decode_stage import DecodedBatch
from ...inference.device import use_device
from ...inference.pipeline import Pipeline
from ...inference.results import BatchResult
from ..errors import internal_error
from ..scheduler.request import Batch
from ..scheduler.scheduler import REMOVED, Scheduler
from .decode_ahead import DecodedAhead, DecodedQueue

logger = logging.getLogger("milkweed.engine")

MOST_RESTARTS, RESTART_WINDOW_SECONDS = 3, 60.0
"""A thread that is ended is begun again, with the same models; one that is ended so often is left to a supervisor."""

CPU = torch.device("cpu")

MOST_FAILURES = 10
"""Forwards that fail in a row, each with other images: the device is lost."""


class DeviceLostError(RuntimeError):
    """No forward works any more, and there are other engines."""


class Deliver(Protocol):
    """Brings a finished batch to where its requests wait; called on the engine's threads, must not block.

    `result` is the outcome of the batch; `None` when its items expired or the engine is stopping.
    """

    def __call__(self, batch: Batch, result: BatchResult | None) -> None: ...


class Engine:
    """Runs batches until the batcher is closed and empty. A batch that fails is that batch's trouble alone.

    Args:
        prepare: loads and warms the models, by name; runs on the engine thread, which owns the device.
        deliver: takes each batch away.
        overlap: decode the next images while a forward runs.
        on_removed: called on the engine thread with the key of a model whose last batch is done, its pipeline closed.
        on_end: called on the engine thread once it has ended, for whatever reason, after the models were loaded.
        expendable: whether other engines can do the work. One that fails every forward is quick to take the next batch:
            where others are, it ends instead.
        stall_seconds: how long a batch may take to decode or to compute before the engine counts as dead.
        place: of this engine among those of the batcher.
        device: that its threads launch on.
    """

    def __init__(
        self,
        batcher: Scheduler,
        *,
        prepare: Callable[[], dict[str, Pipeline]],
        deliver: Deliver,
        overlap: bool = False,
        on_removed: Callable[[str], None] = lambda key: None,
        on_end: Callable[[], None] = lambda: None,
        expendable: Callable[[], bool] = lambda: False,
        stall_seconds: float = 60.0,
        place: int = 0,
        device: torch.device = CPU,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._batcher = batcher
        self._prepare = prepare
        self._deliver = deliver
        self.overlap = overlap
        self._removed = on_removed
        self._on_end = on_end
        self._expendable = expendable
        self._place, self._device = place, device
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._busy_since: float | None = None
        self._loading_since: float | None = None
        self._pipelines: dict[str, Pipeline] = {}
        self._lock = threading.Lock()  # between `add` and the end
        self._thread = threading.Thread(target=self._main, name="milkweed-engine", daemon=True)
        self._in_hand: deque[Batch] = deque()  # collected and not delivered; appends and removals are atomic
        self._ring: DecodedQueue | None = None
        self._leaving: set[str] = set()  # models whose last batch may still be on its way
        self._deaths: list[float] = []
        self._failures = 0  # forwards in a row that failed as a whole
        self.restarts = 0
        self.prepared: Future[None] = Future()
        self._ended_at: float | None = None

    @property
    def ended(self) -> bool:
        """Computes nothing any more."""
        return self._ended_at is not None

    def add(self, key: str, pipeline: Pipeline) -> bool:
        """Compute a model from now on; what it is called in batches must be new. False where the engine has ended."""
        with self._lock:
            if not self.ended:
                self._pipelines[key] = pipeline
            return not self.ended

    def start(self) -> None:
        """Start the thread; `prepared` resolves when the models are warm, or fails as their loading did."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Close the queue, let the engine finish what waits; False when it did not end in time."""
        self._batcher.close()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """False when the thread ended, no forward works any more, or one or an image takes longer than explained."""
        if self.ended or not self._thread.is_alive() or self._failures >= MOST_FAILURES:
            return False
        return not self.prepared.done() or self.silent_seconds() < self._stall_seconds

    @property
    def decoded_images(self) -> int:
        """That wait for the device."""
        return 0 if self._ring is None else self._ring.images

    def silent_seconds(self) -> float:
        """Time since the last sign of life of what works, decoder or device; 0 while idle."""
        if self._ended_at is not None:
            return max(0.0, self._clock() - self._ended_at)
        since = [at for at in (self._busy_since, self._loading_since) if at is not None]
        if since:
            return max(0.0, self._clock() - min(since))
        return self._batcher.oldest_age_seconds() if self.prepared.done() else 0.0

    def _main(self) -> None:
        try:
            self._pipelines = self._prepare()
            use_device(self._device)  # after: models may have been opened for others as well
        except BaseException as error:
            self._ended_at = self._clock()  # before anyone hears of the error: the thread ends a moment later
            self.prepared.set_exception(error)
            return
        self.prepared.set_result(None)
        try:
            while self._run_until_closed_or_killed():
                self.restarts += 1
        finally:
            with self._lock:
                self._ended_at = self._clock()
            for key in list(self._pipelines):
                self._remove(key)
            self._on_end()

    def _run_until_closed_or_killed(self) -> bool:
        """Run batches; True where something ended that and it is worth to begin again."""
        try:
            self._run_overlapped() if self.overlap else self._run_alone()
        except DeviceLostError as error:
            logger.error("%s", error)
            self._drop_in_hand()
        except BaseException:
            logger.exception("the engine thread was ended; what it had in hand is lost")
            self._drop_in_hand()
            now = self._clock()
            self._deaths = [at for at in self._deaths if now - at < RESTART_WINDOW_SECONDS] + [now]
            return len(self._deaths) <= MOST_RESTARTS
        return False

    def _drop_in_hand(self) -> None:
        """Answer, with an internal error each, the batches that a thread had when it was ended."""
        self._busy_since = self._loading_since = None
        while self._in_hand:
            batch = self._in_hand.popleft()
            self._batcher.done(self._place)
            self._deliver(batch, _failed(_not_loaded(batch)))
        for key in list(self._leaving):
            self._remove(key)

    def _run_alone(self) -> None:
        while (batch := self._collect()) is not None:
            if batch.release == REMOVED:
                self._remove(batch.model)
            elif batch.items:
                self._busy_since = self._clock()
                self._finish([DecodedAhead(batch, self._load(batch))])

    def _collect(self, give_up: Callable[[], bool] = lambda: False) -> Batch | None:
        """The next batch, in hand from now on; whoever is too late has been told."""
        batch = self._batcher.collect(give_up, self._place)
        if batch is not None and batch.expired:
            self._deliver(replace(batch, items=[]), None)
        if batch is not None and batch.items:
            self._in_hand.append(batch)
        return batch

    def _remove(self, key: str) -> None:
        self._leaving.discard(key)
        try:
            self._pipelines.pop(key).close()
        except Exception:
            logger.exception("a pipeline could not be closed")  # of a device that is lost
        self._removed(key)

    def _run_overlapped(self) -> None:
        ring = self._ring = DecodedQueue(lambda key: self._pipelines[key].max_batch_size)
        loading = threading.Thread(target=self._load_ahead, args=(ring,), name="milkweed-decode", daemon=True)
        loading.start()
        try:
            while together := ring.take():
                if isinstance(together, str):
                    self._remove(together)
                    continue
                self._busy_since = self._clock()
                self._finish(together)
        finally:
            ring.close()
            self._batcher.wake()
            loading.join(self._stall_seconds)
        if not self._batcher.closed:
            raise RuntimeError("the loading thread was ended")

    def _load_ahead(self, ring: DecodedQueue) -> None:
        """The loading thread: collect and decode as long as there is room."""
        try:
            use_device(self._device)
            while ring.wait_for_room() and (batch := self._collect(lambda: ring.closed)) is not None:
                if batch.release == REMOVED:
                    self._leaving.add(batch.model)  # a ring may be lost with its thread
                    ring.put(batch.model)
                elif batch.items:
                    self._loading_since = self._clock()
                    loaded = self._load(batch)
                    self._loading_since = None
                    ring.put(DecodedAhead(batch, loaded))
        finally:
            ring.close()

    def _load(self, batch: Batch) -> DecodedBatch:
        """Decode a batch; where that fails as a whole, its images have errors and no pixels."""
        try:
            return self._pipelines[batch.model].load(
                [item.data for item in batch.items],
                [item.info for item in batch.items],
                [item.ticket.source for item in batch.items],
            )
        except Exception:
            logger.exception("a batch of %d images could not be decoded", len(batch.items))
            return _not_loaded(batch)

    def _finish(self, together: Sequence[DecodedAhead]) -> None:
        """Compute batches of one model in one forward and hand them over, the work being over by then."""
        results = self._results(together)
        self._busy_since = None
        for each, result in zip(together, results, strict=True):
            self._in_hand.remove(each.batch)
            self._batcher.done(self._place)
            try:
                self._deliver(each.batch, result)
            except Exception:
                logger.exception("a batch of %d images could not be delivered", len(each.batch.items))
        if self._failures >= MOST_FAILURES and self._expendable():
            raise DeviceLostError(f"{self._failures} forwards failed in a row: the device is lost, the others go on")

    def _results(self, together: Sequence[DecodedAhead]) -> list[BatchResult]:
        try:
            results = self._pipelines[together[0].batch.model].finish(
                [each.loaded for each in together],
                [[item.ticket.top_k for item in each.batch.items] for each in together],
            )
            self._failures = 0
            return results if self.overlap else [_loaded_too(results[0]), *results[1:]]
        except Exception:
            self._failures += 1
            logger.exception("a batch of %d images failed", sum(len(each.batch.items) for each in together))
            return [_failed(each.loaded) for each in together]


def _loaded_too(result: BatchResult) -> BatchResult:
    """Where one thread does both halves, it was busy with the first one as well."""
    if result.forward is None:
        return result
    busy_seconds = result.forward.busy_seconds + result.decoded - result.started
    return replace(result, forward=replace(result.forward, busy_seconds=busy_seconds))


def _not_loaded(batch: Batch) -> DecodedBatch:
    """No pixels, and an internal error for every image."""
    now, failed = time.perf_counter(), [internal_error() for _ in batch.items]
    return DecodedBatch([*failed], torch.empty(0), [], [None] * len(failed), 0.0, now, now)


def _failed(loaded: DecodedBatch) -> BatchResult:
    """An internal error for every image that has none of its own."""
    now = time.perf_counter()
    outcomes = [internal_error() if outcome is None else outcome for outcome in loaded.outcomes]
    return BatchResult(outcomes, loaded.started, loaded.decoded, loaded.decoded, now, now, {})
