"""Scheduler: the bounded queue between the event loop and the engines: no timer, no polling, every wait has an end.

A request is taken only if it can be answered in time: what waits before it, what runs now and its own images, at the
costs that batches were seen to have, against its deadline. So the device never works for callers who have gone.

Several engines share one queue, and each pulls the next batch when it is free: the least loaded device takes the work
by itself, a slow one takes less of it, and no image waits behind a busy device while another is idle. An engine that
decodes ahead asks while it is busy; it gets nothing as long as one with fewer batches in flight waits for work.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import Metric

from ...loaders.headers.info import ImageInfo
from ..errors import ServiceError
from ..telemetry.queue_metrics import QueueSnapshot, queue_families
from .admission import QueueLimits
from .cost_model import CostModel
from .model_queue import ModelQueue
from .request import Batch, Priority, QueuedImage, RemovedModel, Request
from .wait_estimate import EngineSlot, Work, time_to_finish, time_to_start

IMPATIENT_SHARE = 0.3
"""From this share of requests that are given up before their answer on, the newest are computed first. In the order in
which they came, all would be computed just as their callers leave, and nobody would be answered."""

PATIENCE_GAIN = 1 / 32


class Scheduler:
    """Owns the queues. `submit` and `cancel` belong to the event loop, `next_batch` to the engines' threads.

    Args:
        max_queue_images, max_queue_pixels: how many may wait, of all models together.
        engines: number of engines; their engine_ids are 0, 1, ...
        clock: perf_counter seconds; tests bring their own.
    """

    def __init__(
        self,
        *,
        max_queue_images: int,
        max_queue_pixels: int = 1 << 62,
        engines: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._limits = QueueLimits(max_queue_images, max_queue_pixels)
        self._clock = clock
        self._lock = threading.RLock()
        self._engines = [EngineSlot(self._lock) for _ in range(engines)]
        self._queues: dict[str, ModelQueue] = {}
        self._removing: dict[str, set[int]] = {}  # the engines that have not heard of it yet, by model
        self._given_up = 0.0  # smoothed share of requests that are given up
        self._closed = False

    def add_model(self, queue: ModelQueue) -> None:
        """Accept images for the model of a queue from now on; requests call it by its key."""
        with self._lock:
            self._queues[queue.model] = queue

    def remove_model(self, key: str) -> None:
        """Accept no more images for a model; once none waits, each engine is told."""
        with self._lock:
            self._removing[key] = set(self._alive())
            self._forget_removed(key)
            self.wake()

    def submit(
        self, request: Request, images: Sequence[tuple[int, bytes, ImageInfo]], *, unseen_seconds: float = 0.0
    ) -> None:
        """Queue a request: all of its images or none.

        Args:
            images: index in the request, encoded bytes, header.
            unseen_seconds: time up to the deadline that passes before a request is seen and after its answer is there.

        Raises:
            ServiceError: `overloaded` where they do not fit or cannot be answered in time, `deadline` where the time
                is up already, `draining` after `close`.
        """
        now = self._clock()
        pixels = sum(info.pixels for _, _, info in images)
        with self._lock:
            if self._closed:
                raise ServiceError("draining", "the server is shutting down", retry_after_seconds=1)
            self._limits.check(request, len(images), pixels, self._queues[request.model], self._queues.values())
            self._check_time(request, len(images), pixels, now, unseen_seconds)
            request.pending = len(images)
            queue, waits = self._queues[request.model], not self._is_idle()
            for index, data, info in images:
                queue.add(QueuedImage(request, index, data, info, now, waits))
            self._wake_next()

    def answered(self) -> None:
        """Note that a request got its answer."""
        self._given_up -= PATIENCE_GAIN * self._given_up

    def cancel(self, request: Request) -> int:
        """Drop the images of a request that still wait, because nobody wants them; returns how many there were."""
        with self._lock:
            self._given_up += PATIENCE_GAIN * (1 - self._given_up)
            return self.drop(request)

    def drop(self, request: Request) -> int:
        """The same of a shadow: no caller has lost patience."""
        with self._lock:
            queue = self._queues.get(request.model)
            return 0 if queue is None else queue.remove(request)

    def next_batch(
        self, engine_id: int = 0, give_up: Callable[[], bool] = lambda: False
    ) -> Batch | RemovedModel | None:
        """The next batch for an engine: waits until it has one, never longer; `None` once closed and empty. `give_up`:
        asked whenever `wake` is called; `None` is the answer once it says so."""
        slot = self._engines[engine_id]
        with self._lock:
            slot.waiting = True
            try:
                while not give_up():
                    gone = self._removed_for(engine_id) if self._removing else None
                    if gone is not None:
                        return RemovedModel(gone)
                    queue = self._oldest()
                    if queue is not None and self._is_turn(slot):
                        return self._pop_batch(engine_id, queue)
                    if queue is None and self._closed:
                        return None
                    if queue is not None:
                        self._wake_next()
                    slot.wake.wait()
                return None
            finally:
                slot.waiting = False
                self._wake_next()

    def wake(self) -> None:
        """Make every `next_batch` that waits ask again whether to give up, and for what there is."""
        with self._lock:
            for slot in self._engines:
                slot.wake.notify()

    def batch_done(self, engine_id: int = 0) -> None:
        """Note that a batch of an engine is computed, or lost."""
        with self._lock:
            self._engines[engine_id].end(self._clock())

    def remove_engine(self, engine_id: int) -> None:
        """Note that an engine takes no more batches, for good: no estimate counts on it."""
        with self._lock:
            self._engines[engine_id].alive = False
            for key, missing in list(self._removing.items()):
                missing.discard(engine_id)
                self._forget_removed(key)

    def close(self) -> None:
        """Accept nothing more; `next_batch` hands out what waits and then ends."""
        with self._lock:
            self._closed = True
            self.wake()

    def abandon(self) -> list[Request]:
        """Empty the queues without computing; returns the requests that were in them."""
        with self._lock:
            return list({request for queue in self._queues.values() for request in queue.clear()})

    @property
    def models(self) -> set[str]:
        """The keys of all models, those that are being removed among them."""
        with self._lock:
            return set(self._queues)

    @property
    def closed(self) -> bool:
        """Whether it accepts nothing more."""
        return self._closed

    @property
    def depth(self) -> int:
        """Number of images that wait."""
        with self._lock:
            return sum(queue.images for queue in self._queues.values())

    def wait_seconds(self, priority: Priority = "bulk") -> float:
        """When an engine should be free for a request that came now."""
        with self._lock:
            now = self._clock()
            return time_to_start(self._engines, self._work(priority, now), now)

    def oldest_age_seconds(self) -> float:
        """How long the image that has waited longest has waited; 0 when none does."""
        with self._lock:
            came = [at for queue in self._queues.values() if (at := queue.oldest_submitted()) is not None]
        return max(0.0, self._clock() - min(came)) if came else 0.0

    def collect_metrics(self) -> Iterator[Metric]:
        """The queue as gauges, for the registry."""
        now = self._clock()
        with self._lock:
            snapshots = [
                QueueSnapshot(queue.label, queue.images, queue.bytes, queue.pixels, queue.oldest_submitted())
                for queue in self._queues.values()
            ]
        yield from queue_families(snapshots, now, self.wait_seconds())

    def _check_time(self, request: Request, images: int, pixels: int, now: float, unseen: float) -> None:
        """Refuse what would be late. An idle device tries whatever comes: estimates are corrected by what runs."""
        work = self._work(request.priority, now, (request, images, pixels))
        ahead = time_to_finish(self._engines, work, now)
        if self._given_up <= IMPATIENT_SHARE and not request.shadow:  # else it goes in another order
            request.expected_finish = now + ahead
        if self._is_idle():
            return
        costs = self._queues[request.model].costs
        ahead += max((costs[engine_id].slack_seconds() for engine_id in self._alive()), default=0.0)
        if request.deadline <= now:
            raise ServiceError("deadline", "the time was up before the images could be queued")
        left = request.deadline - now - unseen
        if ahead > left:
            times = f"the answer would take {ahead * 1e3:.0f} ms and {max(0.0, left) * 1e3:.0f} ms are left"
            raise ServiceError("overloaded", f"{times}: {self.depth} images wait")

    def _work(self, priority: Priority, now: float, new: tuple[Request, int, int] | None = None) -> Iterator[Work]:
        """What goes before a request of that priority; with a new one, its images and its pixels, also itself."""
        for name, queue in self._queues.items():
            request, images, pixels = new if new is not None and new[0].model == name else (None, 0, 0)
            bulk = queue.waiting(shadows=False) if priority == "bulk" else None
            waiting = bulk or queue.before(now, request, images)
            yield queue.costs, waiting[0] + images, waiting[1] + pixels

    def _alive(self) -> list[int]:
        return [engine_id for engine_id, slot in enumerate(self._engines) if slot.alive]

    def _is_idle(self) -> bool:
        """Whether an engine has nothing to do."""
        return not self.depth and any(slot.alive and not slot.running for slot in self._engines)

    def _is_turn(self, slot: EngineSlot) -> bool:
        """Whether nobody who waits for a batch has less to do."""
        if len(self._engines) == 1:
            return True
        return not any(other.waiting and other.load < slot.load for other in self._engines)

    def _wake_next(self) -> None:
        """Wake whoever shall act next: for a batch one engine, for news all of them."""
        if self._closed or self._removing:
            self.wake()
        elif len(self._engines) == 1:
            self._engines[0].wake.notify()
        elif self.depth:
            waiting = [slot for slot in self._engines if slot.waiting]
            if waiting:
                min(waiting, key=lambda slot: slot.load).wake.notify()

    def _removed_for(self, engine_id: int) -> str | None:
        """A model that no batch will come of any more, told to each engine once."""
        for key, missing in self._removing.items():
            if engine_id in missing and not self._queues[key].images:
                missing.remove(engine_id)
                self._forget_removed(key)
                return key
        return None

    def _forget_removed(self, key: str) -> None:
        """Every engine has heard that a model is removed."""
        if not self._removing[key]:
            del self._queues[key], self._removing[key]

    def _oldest(self) -> ModelQueue | None:
        """The queue of the model whose next image has waited longest, bulk behind interactive as in one queue."""
        heads = [(head.due, name) for name, queue in self._queues.items() if (head := queue.peek()) is not None]
        return self._queues[min(heads)[1]] if heads else None

    def _pop_batch(self, engine_id: int, queue: ModelQueue) -> Batch:
        now = self._clock()
        newest_first = self._given_up > IMPATIENT_SHARE and not self._closed
        costs = queue.costs[engine_id]
        is_late = self._late(queue, costs, now)
        batch = queue.pop_batch(now, engine_id, is_late, newest_first=newest_first, draining=self._closed)
        if batch.items:
            self._engines[engine_id].begin(now, costs.seconds(len(batch.items), batch.pixels))
        return batch

    def _late(self, queue: ModelQueue, costs: CostModel, now: float) -> Callable[[QueuedImage], bool]:
        """Whether an image is too late to compute: past its deadline, or would be at the end of the batch to come."""
        images = min(queue.images, costs.max_batch_size)
        soonest = costs.seconds(images, queue.pixels * images // max(queue.images, 1))
        return lambda item: item.request.deadline <= now + (soonest if item.waits else 0.0)
