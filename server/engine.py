"""The one thread that owns the device: it loads the models, then collects a batch, runs it, delivers it."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from .batcher import Batch, Batcher
from .errors import internal_error
from .pipeline import BatchResult, Pipeline

logger = logging.getLogger("milkweed.engine")


class Deliver(Protocol):
    """Brings a finished batch to where its requests wait; called on the engine thread, must not block.

    `result` is the outcome of the batch; `None` when its items expired or the engine is stopping.
    """

    def __call__(self, batch: Batch, result: BatchResult | None) -> None: ...


class Engine:
    """Runs batches until the batcher is closed and empty. A batch that fails is that batch's trouble alone.

    Args:
        prepare: loads and warms the models, by name; runs on the engine thread, which owns the device.
        deliver: takes each batch away.
        stall_seconds: how long one batch may take before the engine counts as dead.
    """

    def __init__(
        self,
        batcher: Batcher,
        *,
        prepare: Callable[[], dict[str, Pipeline]],
        deliver: Deliver,
        stall_seconds: float = 60.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._batcher = batcher
        self._prepare = prepare
        self._deliver = deliver
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._busy_since: float | None = None
        self._pipelines: dict[str, Pipeline] = {}
        self._thread = threading.Thread(target=self._main, name="milkweed-engine", daemon=True)
        self.prepared: Future[None] = Future()
        self.ended = False

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
        """False when the thread ended, or a batch runs or an image waits longer than anything explains."""
        if self.ended or not self._thread.is_alive():
            return False
        return not self.prepared.done() or self.silent_seconds() < self._stall_seconds

    def silent_seconds(self) -> float:
        """Time since the last sign of life while there is work; 0 while idle."""
        busy_since = self._busy_since
        if busy_since is not None:
            return max(0.0, self._clock() - busy_since)
        return self._batcher.oldest_age_seconds() if self.prepared.done() else 0.0

    def _main(self) -> None:
        try:
            self._pipelines = self._prepare()
        except BaseException as error:
            self.ended = True  # before anyone hears of the error: the thread itself ends a moment later
            self.prepared.set_exception(error)
            return
        self.prepared.set_result(None)
        try:
            while (batch := self._batcher.collect()) is not None:
                self._step(batch)
        finally:
            self.ended = True
            for pipeline in self._pipelines.values():
                pipeline.close()

    def _step(self, batch: Batch) -> None:
        """Run one batch and hand it over."""
        if not batch.items:
            self._deliver(batch, None)
            return
        self._busy_since = self._clock()
        try:
            self._deliver(batch, self._run(batch))
        except Exception:
            logger.exception("a batch of %d images could not be delivered", len(batch.items))
        finally:
            self._busy_since = None

    def _run(self, batch: Batch) -> BatchResult:
        started = time.perf_counter()
        items = batch.items
        try:
            return self._pipelines[batch.model].run(
                [item.data for item in items],
                [item.info for item in items],
                [item.ticket.top_k for item in items],
            )
        except Exception:
            logger.exception("a batch of %d images failed", len(items))
            now = time.perf_counter()
            return BatchResult([internal_error() for _ in items], started, now, now, now, {}, 0)
