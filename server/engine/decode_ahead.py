"""DecodedQueue: decoded batches on their way from the decoding thread to the thread that owns the device; bounded."""

import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from ...inference.decode_stage import DecodedBatch
from ...inference.results import BatchResult, InferenceError
from ..scheduler.request import Batch

Decoded = tuple[Batch, DecodedBatch]
"""A batch and its decoded images."""


class DecodedQueue:
    """One thread puts, another one takes. What waits together goes into one forward, so that decoding images as they
    come does not make the device's batches smaller. `limit`: images of one forward of a model, by its key. As many may
    wait decoded before the decoding thread has to."""

    def __init__(self, limit: Callable[[str], int]) -> None:
        self._limit = limit
        self._wake = threading.Condition()
        self._waiting: deque[Decoded | str] = deque()
        self._closed = False

    @property
    def images(self) -> int:
        """Number of decoded images that wait."""
        return sum(len(entry[0].items) for entry in list(self._waiting) if not isinstance(entry, str))

    @property
    def closed(self) -> bool:
        """Whether nothing comes any more."""
        return self._closed

    def wait_for_room(self) -> bool:
        """Wait until fewer images are here than the next forward takes; False once the queue is closed."""
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._has_room())
            return not self._closed

    def put(self, entry: Decoded | str) -> None:
        """Add a batch, or the key of a model that no batch will come of any more; `wait_for_room` says when."""
        with self._wake:
            self._waiting.append(entry)
            self._wake.notify_all()

    def take(self) -> list[Decoded] | str:
        """What goes into the next forward, all of one model, or the key of a removed model; empty once all is over."""
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._waiting)
            batches: list[Decoded] = []
            images = 0
            while self._waiting:
                first = self._waiting[0]
                if isinstance(first, str):
                    if not batches:
                        self._waiting.popleft()
                        return first
                    break
                batch, _ = first
                images += len(batch.items)
                if batches and (batch.model != batches[0][0].model or images > self._limit(batch.model)):
                    break
                batches.append(first)
                self._waiting.popleft()
            self._wake.notify_all()
            return batches

    def close(self) -> None:
        """Let nothing come any more; what waits can still be taken."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _has_room(self) -> bool:
        first = next((entry for entry in self._waiting if not isinstance(entry, str)), None)
        return first is None or self.images < self._limit(first[0].model)


def not_decoded(batch: Batch) -> DecodedBatch:
    """A batch without pixels and with an internal error for every image."""
    now, failed = time.perf_counter(), [InferenceError() for _ in batch.items]
    return DecodedBatch([*failed], np.empty(0, np.float32), [], [None] * len(failed), 0.0, now, now)


def failed(decoded: DecodedBatch) -> BatchResult:
    """The result of a batch whose forward failed: an internal error for every image that has no error of its own."""
    now = time.perf_counter()
    outcomes = [InferenceError() if outcome is None else outcome for outcome in decoded.outcomes]
    return BatchResult(outcomes, decoded.started, decoded.decoded, decoded.decoded, now, now, {})
