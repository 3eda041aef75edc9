"""Engine: the thread that owns a device, and the one that decodes ahead of it.

Without overlap one thread does both halves of a batch. With it, a second thread takes batches from the scheduler and
decodes them while the first one computes; the queue between them is bounded, and neither the event loop nor the device
ever waits for a decoder.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ...inference.decode_stage import DecodedBatch
from ...inference.device import Device, use_device
from ...inference.pipeline import Pipeline
from ...inference.results import BatchResult
from ..scheduler.request import Batch, RemovedModel
from ..scheduler.scheduler import Scheduler
from .decode_ahead import Decoded, DecodedQueue, failed, not_decoded
from .events import BatchEvents, StateEvents

logger = logging.getLogger("milkweed.engine")

MAX_RESTARTS, RESTART_WINDOW_SECONDS = 3, 60.0
"""A thread that dies is started again with the same models; one that dies so often is left to a supervisor."""

MAX_FAILURES = 10
"""So many forwards that fail in a row, each with other images, mean that the device is lost."""


class DeviceLostError(RuntimeError):
    """No forward works any more, and there are other engines."""


class Engine:
    """Runs batches until the scheduler is closed and empty. A batch that fails harms no other.

    Args:
        batch_events: hears of each batch and of removed models.
        state_events: hears of the engine's readiness and of its end.
        overlap: decode the next images while a forward runs.
        expendable: whether other engines can do the work. An engine that fails every forward is quick to take the next
            batch: where there are others, it ends instead.
        stall_seconds: how long a batch may take to decode or to compute before the engine counts as dead.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        batch_events: BatchEvents,
        state_events: StateEvents,
        *,
        engine_id: int,
        device: Device,
        overlap: bool,
        expendable: Callable[[], bool],
        stall_seconds: float,
    ) -> None:
        self.engine_id, self.overlap, self.restarts = engine_id, overlap, 0
        self._scheduler, self._batch_events, self._state_events = scheduler, batch_events, state_events
        self._device, self._expendable, self._stall_seconds = device, expendable, stall_seconds
        self._pipelines: dict[str, Pipeline] = {}
        self._lock = threading.Lock()  # between `add` and the end
        self._thread: threading.Thread | None = None
        self._ready = False
        self._ended_at: float | None = None
        self._busy_since: float | None = None
        self._decoding_since: float | None = None
        self._in_flight: deque[Batch] = deque()  # taken and not delivered; appends and removals are atomic
        self._decoded: DecodedQueue | None = None
        self._removing: set[str] = set()  # models whose last batch may still be on its way
        self._deaths: list[float] = []
        self._failures = 0  # forwards in a row that failed as a whole

    def start(self, open_models: Callable[[], dict[str, Pipeline]]) -> None:
        """Start the thread; `ready` is called when the models are warm or could not be loaded. `open_models`:
        loads and warms the models, by key; it runs on the engine's thread, which owns the device."""
        self._thread = threading.Thread(target=self._main, args=(open_models,), name="milkweed-engine", daemon=True)
        self._thread.start()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for its end, once the scheduler is closed; False when it did not end in time."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        return self._thread is None or not self._thread.is_alive()

    def add(self, key: str, pipeline: Pipeline) -> bool:
        """Compute a model from now on, under a key that is new. False where the engine has ended."""
        with self._lock:
            if not self.ended:
                self._pipelines[key] = pipeline
            return not self.ended

    @property
    def models(self) -> set[str]:
        """The keys of the models that it computes."""
        return set(self._pipelines)

    @property
    def ended(self) -> bool:
        """Whether it computes nothing any more."""
        return self._ended_at is not None

    @property
    def alive(self) -> bool:
        """False when the thread ended, no forward works any more, or a batch takes longer than anything explains."""
        if self.ended or self._thread is None or not self._thread.is_alive() or self._failures >= MAX_FAILURES:
            return False
        return not self._ready or self.silent_seconds() < self._stall_seconds

    @property
    def decoded_images(self) -> int:
        """Number of decoded images that wait for the device."""
        return 0 if self._decoded is None else self._decoded.images

    def silent_seconds(self) -> float:
        """Time since the last sign of life of the decoder or the device; 0 while idle."""
        if self._ended_at is not None:
            return max(0.0, time.perf_counter() - self._ended_at)
        since = [at for at in (self._busy_since, self._decoding_since) if at is not None]
        if since:
            return max(0.0, time.perf_counter() - min(since))
        return self._scheduler.oldest_age_seconds() if self._ready else 0.0

    def run(self) -> None:
        """Run batches until the scheduler is closed and empty."""
        if self.overlap:
            self._run_overlapped()
            return
        for decoded in self._decode_batches(self._remove):
            self.step([decoded])
            del decoded  # or its pixels would stay until the next batch comes

    def _run_overlapped(self) -> None:
        """Run what another thread decodes: as much of it in one forward as waits."""
        queue = self._decoded = DecodedQueue(lambda key: self._pipelines[key].max_batch_size)
        decoding = threading.Thread(target=self._decode_ahead, args=(queue,), name="milkweed-decode", daemon=True)
        decoding.start()
        try:
            while decoded := queue.take():
                if isinstance(decoded, str):
                    self._remove(decoded)
                else:
                    self.step(decoded)
        finally:
            queue.close()
            self._scheduler.wake()
            decoding.join(self._stall_seconds)
        if not self._scheduler.closed:
            raise RuntimeError("the decoding thread died")

    def step(self, decoded: Sequence[Decoded]) -> None:
        """Compute decoded batches of one model in one forward, and deliver them."""
        self._busy_since = time.perf_counter()
        self._deliver([batch for batch, _ in decoded], self._forward(decoded))

    def _decode_ahead(self, queue: DecodedQueue) -> None:
        """The decoding thread: decode batches as long as there is room."""

        def removed(key: str) -> None:
            self._removing.add(key)  # the queue may be lost with its thread
            queue.put(key)

        try:
            use_device(self._device)
            for decoded in self._decode_batches(removed, lambda: queue.closed):
                queue.put(decoded)
                if not queue.wait_for_room():
                    return
        finally:
            queue.close()

    def _decode_batches(
        self, removed: Callable[[str], None], give_up: Callable[[], bool] = lambda: False
    ) -> Iterator[Decoded]:
        """Take the batches of this engine, each in flight from now on, and decode them; `removed` hears the key of each
        model that no batch will come of any more."""
        while (batch := self._scheduler.next_batch(self.engine_id, give_up)) is not None:
            if isinstance(batch, RemovedModel):
                removed(batch.key)
                continue
            if batch.expired:
                self._batch_events.requests_expired(batch.expired)
            if batch.items:
                self._in_flight.append(batch)
                yield batch, self._decode(batch)

    def _decode(self, batch: Batch) -> DecodedBatch:
        """Decode a batch; where that fails as a whole, its images have errors and no pixels."""
        self._decoding_since = time.perf_counter()
        try:
            return self._pipelines[batch.model].decode(
                [item.data for item in batch.items],
                [item.info for item in batch.items],
                [item.request.caller for item in batch.items],
            )
        except Exception:
            logger.exception("a batch of %d images could not be decoded", len(batch.items))
            return not_decoded(batch)
        finally:
            self._decoding_since = None

    def _forward(self, decoded: Sequence[Decoded]) -> list[BatchResult]:
        """Compute decoded batches of one model in one forward; the results are on the host when it returns."""
        model = decoded[0][0].model
        try:
            results = self._pipelines[model].forward(
                [images for _, images in decoded],
                [[item.request.top_k for item in batch.items] for batch, _ in decoded],
                [[item.request.embeds for item in batch.items] for batch, _ in decoded],
                [[item.request.shadow or item.index in item.request.sampled for item in b.items] for b, _ in decoded],
            )
            self._failures = 0
        except Exception:
            self._failures += 1
            logger.exception("a batch of %d images failed", sum(len(batch.items) for batch, _ in decoded))
            return [failed(images) for _, images in decoded]
        return results if self.overlap else [_with_decoding(result) for result in results]

    def _deliver(self, batches: Sequence[Batch], results: Sequence[BatchResult]) -> None:
        """Hand over computed batches."""
        self._busy_since = None
        for batch, result in zip(batches, results, strict=True):
            self._in_flight.remove(batch)
            self._scheduler.batch_done(self.engine_id)
            try:
                self._batch_events.batch_done(batch, result)
            except Exception:
                logger.exception("a batch of %d images could not be delivered", len(batch.items))
        if self._failures >= MAX_FAILURES and self._expendable():
            raise DeviceLostError(f"{self._failures} forwards failed in a row: the device is lost, the others go on")

    def _remove(self, key: str) -> None:
        self._removing.discard(key)
        try:
            self._pipelines.pop(key).close()
        except Exception:
            logger.exception("a pipeline could not be closed")  # its device is lost
        self._batch_events.model_removed(self.engine_id, key)

    def _main(self, open_models: Callable[[], dict[str, Pipeline]]) -> None:
        try:
            self._pipelines = open_models()
            use_device(self._device)  # now: models may have been opened for other devices as well
        except BaseException as error:
            self._ended_at = time.perf_counter()  # before anyone hears of the error: the thread ends a moment later
            self._state_events.ready(self.engine_id, error)
            return
        self._ready = True
        self._state_events.ready(self.engine_id, None)
        try:
            while self._run_until_closed_or_dead():
                self.restarts += 1
        finally:
            with self._lock:
                self._ended_at = time.perf_counter()
            for key in list(self._pipelines):
                self._remove(key)
            self._state_events.engine_ended(self.engine_id)

    def _run_until_closed_or_dead(self) -> bool:
        """Run batches; True where something ended that and it is worth starting again."""
        try:
            self.run()
        except DeviceLostError as error:
            logger.error("%s", error)
            self._fail_in_flight()
        except BaseException:
            logger.exception("the engine thread was ended; what it had in hand is lost")
            self._fail_in_flight()
            now = time.perf_counter()
            self._deaths = [at for at in self._deaths if now - at < RESTART_WINDOW_SECONDS] + [now]
            return len(self._deaths) <= MAX_RESTARTS
        return False

    def _fail_in_flight(self) -> None:
        """Answer the batches that a thread had when it died with an internal error for each image."""
        self._busy_since = self._decoding_since = None
        while self._in_flight:
            batch = self._in_flight.popleft()
            self._scheduler.batch_done(self.engine_id)
            self._batch_events.batch_done(batch, failed(not_decoded(batch)))
        for key in list(self._removing):
            self._remove(key)


def _with_decoding(result: BatchResult) -> BatchResult:
    """Where one thread does both halves of a batch, decoding counts towards the time that it was busy."""
    if result.forward is None:
        return result
    busy_seconds = result.forward.busy_seconds + result.decoded - result.started
    return replace(result, forward=replace(result.forward, busy_seconds=busy_seconds))
