"""The bounded queue between the event loop and the engine: no timer, no polling, every wait has an end.

A request is taken only if it can be answered in time: what waits before it, what runs now and its own images, at the
costs that batches were seen to have, against its deadline. So the device never works for callers who have gone.

Several engines share one queue, and each pulls the next batch when it is free: the least loaded device takes the work
by itself, a slow one takes less of it, and no image waits behind a busy device while another is idle. An engine that
decodes ahead asks while it is busy; it gets nothing as long as one with fewer batches in hand waits for work.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from ...loaders.headers.info import ImageInfo
from ..errors import ServiceError
from ..telemetry.queue_metrics import QueueSnapshot, queue_families
from .admission import QueueLimits
from .cost_model import CostModel
from .model_queue import ModelQueue
from .request import Batch, Priority, QueuedImage, Request
from .wait_estimate import EngineSlot, Work, time_to_finish, time_to_start

REMOVED = "removed"
"""Why a batch is empty that stands for a model's end."""

IMPATIENT_SHARE = 0.3
"""Of requests that are given up before their answer: from then on the newest are computed first. In the order they
came, all would be computed just as their callers leave, and nobody would be answered."""

PATIENCE_GAIN = 1 / 32


class Scheduler:
    """Owns the queue. `submit` and `discard` belong to the event loop, `collect` to the engine's threads.

    Args:
        max_queue_images, max_queue_pixels: that may wait, of all models together.
        engines: that collect, each by its place.
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
        self._room = QueueLimits(max_queue_images, max_queue_pixels)
        self._clock = clock
        self._lock = threading.RLock()
        self._seats = [EngineSlot(self._lock) for _ in range(engines)]
        self._lines: dict[str, ModelQueue] = {}
        self._removing: dict[str, set[int]] = {}  # and the engines that have not heard of it
        self._given_up = 0.0  # smoothed share of requests
        self._closed = False

    def add_model(
        self,
        key: str,
        *,
        max_batch_pixels: int,
        costs: Sequence[CostModel],
        label: str | None = None,
        max_images: int | None = None,
    ) -> None:
        """Accept images for a model from now on.

        Args:
            key: what tickets call it.
            costs: on each engine: devices differ, by kind and by what else runs on them.
            label: what metrics call it; the key where none is given.
            max_images: that may wait of all that have this label; None: as many as of all models.
        """
        with self._lock:
            self._lines[key] = ModelQueue(max_batch_pixels, costs, label or key, max_images)

    def remove_model(self, key: str) -> None:
        """Accept no more images for a model; once none waits, `collect` says so to each engine, by an empty batch."""
        with self._lock:
            self._removing[key] = set(self._alive())
            self._forget_removed(key)
            self.wake()

    def submit(
        self, ticket: Request, images: Sequence[tuple[int, bytes, ImageInfo]], *, unseen_seconds: float = 0.0
    ) -> None:
        """Queue a request: all of its images or none.

        Args:
            images: place in the request, encoded bytes, header.
            unseen_seconds: of the deadline that pass before a request is seen and after its answer is there.

        Raises:
            ServiceError: `overloaded` where they do not fit or cannot be answered in time, `deadline` where the time
                is up already, `draining` after `close`.
        """
        now = self._clock()
        pixels = sum(info.pixels for _, _, info in images)
        with self._lock:
            if self._closed:
                raise ServiceError("draining", "the server is shutting down", retry_after_seconds=1)
            self._room.check(ticket, len(images), pixels, self._lines[ticket.model], self._lines.values())
            self._check_time(ticket, len(images), pixels, now, unseen_seconds)
            ticket.missing = len(images)
            line, waits = self._lines[ticket.model], not self._is_idle()
            for place, data, info in images:
                line.add(QueuedImage(ticket, place, data, info, now, waits))
            self._room.take(len(images), pixels)
            self._pass_on()

    def answered(self) -> None:
        """A request got its answer."""
        self._given_up -= PATIENCE_GAIN * self._given_up

    def discard(self, ticket: Request) -> int:
        """Forget a request's images that still wait, because nobody wants them; how many there were."""
        with self._lock:
            self._given_up += PATIENCE_GAIN * (1 - self._given_up)
            line = self._lines.get(ticket.model)
            if line is None:
                return 0
            pixels = line.pixels
            removed = line.remove(ticket)
            self._room.take(-removed, line.pixels - pixels)
            return removed

    def collect(self, give_up: Callable[[], bool] = lambda: False, engine: int = 0) -> Batch | None:
        """The next batch for an engine: waits until it has one, never longer; `None` once closed and empty.

        Args:
            give_up: asked whenever `wake` is called; `None` is the answer once it says so.
        """
        seat = self._seats[engine]
        with self._lock:
            seat.waiting = True
            try:
                while not give_up():
                    gone = self._removed_for(engine) if self._removing else None
                    if gone is not None:
                        return Batch(gone, [], REMOVED, engine=engine)
                    found = self._oldest()
                    if found is not None and self._is_turn(seat):
                        return self._take(engine, *found)
                    if found is None and self._closed:
                        return None
                    if found is not None:
                        self._pass_on()
                    seat.wake.wait()
                return None
            finally:
                seat.waiting = False
                self._pass_on()

    def wake(self) -> None:
        """Have every waiting `collect` ask again whether to give up, and for what there is."""
        with self._lock:
            for seat in self._seats:
                seat.wake.notify()

    def done(self, engine: int = 0) -> None:
        """A batch that `collect` handed to an engine is computed, or lost."""
        with self._lock:
            self._seats[engine].end(self._clock())

    def leave(self, engine: int) -> None:
        """An engine collects no more, for good: no promise counts on it."""
        with self._lock:
            self._seats[engine].alive = False
            for key, missing in list(self._removing.items()):
                missing.discard(engine)
                self._forget_removed(key)

    def close(self) -> None:
        """Accept nothing more; `collect` hands out what waits and then ends."""
        with self._lock:
            self._closed = True
            self.wake()

    def abandon(self) -> list[Request]:
        """Empty the queue without computing; the requests that were in it."""
        with self._lock:
            tickets = {ticket for line in self._lines.values() for ticket in line.clear()}
            self._room.images = self._room.pixels = 0
            return list(tickets)

    @property
    def closed(self) -> bool:
        """Accepts nothing more."""
        return self._closed

    @property
    def depth(self) -> int:
        """Images that wait."""
        return self._room.images

    def wait_seconds(self, priority: Priority = "bulk") -> float:
        """When an engine should be free for a request that came now."""
        with self._lock:
            now = self._clock()
            return time_to_start(self._seats, self._work(priority, now, {}), now)

    def oldest_age_seconds(self) -> float:
        """How long the image that has waited longest has waited; 0 when none does."""
        with self._lock:
            came = [at for line in self._lines.values() if (at := line.oldest_submitted()) is not None]
        return max(0.0, self._clock() - min(came)) if came else 0.0

    def collect_metrics(self) -> Iterator[Metric]:
        """The queue as gauges, for the registry."""
        now = self._clock()
        with self._lock:
            found = [
                QueueSnapshot(line.label, line.images, line.bytes, line.pixels, line.oldest_submitted())
                for line in self._lines.values()
            ]
        yield from queue_families(found, now, self.wait_seconds())

    def _check_time(self, ticket: Request, images: int, pixels: int, now: float, unseen: float) -> None:
        """Refuse what would be late. An idle device tries whatever comes: estimates are corrected by what runs."""
        work = self._work(ticket.priority, now, {ticket.model: (images, pixels)})
        ahead = time_to_finish(self._seats, work, now)
        if self._given_up <= IMPATIENT_SHARE:  # else it goes in another order
            ticket.foretold = now + ahead
        if self._is_idle():
            return
        costs = self._lines[ticket.model].costs
        ahead += max((costs[place].slack_seconds() for place in self._alive()), default=0.0)
        if ticket.deadline <= now:
            raise ServiceError("deadline", "the time was up before the images could be queued")
        left = ticket.deadline - now - unseen
        if ahead > left:
            raise ServiceError(
                "overloaded",
                f"the answer would take {ahead * 1e3:.0f} ms and {max(0.0, left) * 1e3:.0f} ms are left: "
                f"{self._room.images} images wait",
            )

    def _work(self, priority: Priority, now: float, more: Mapping[str, tuple[int, int]]) -> Iterator[Work]:
        """What waits before a request of that priority, with so many images and pixels more of a model."""
        for name, line in self._lines.items():
            images, pixels = (line.images, line.pixels) if priority == "bulk" else line.before_interactive(now)
            more_images, more_pixels = more.get(name, (0, 0))
            yield line.costs, images + more_images, pixels + more_pixels

    def _alive(self) -> list[int]:
        return [engine for engine, seat in enumerate(self._seats) if seat.alive]

    def _is_idle(self) -> bool:
        """Whether an engine has nothing to do."""
        return not self._room.images and any(seat.alive and not seat.running for seat in self._seats)

    def _is_turn(self, seat: EngineSlot) -> bool:
        """Whether nobody who waits for a batch has less to do."""
        if len(self._seats) == 1:
            return True
        return not any(other.waiting and other.load < seat.load for other in self._seats)

    def _pass_on(self) -> None:
        """Wake whoever shall act next: for a batch one engine, for news all of them."""
        if self._closed or self._removing:
            self.wake()
        elif len(self._seats) == 1:
            self._seats[0].wake.notify()
        elif self._room.images:
            waiting = [seat for seat in self._seats if seat.waiting]
            if waiting:
                min(waiting, key=lambda seat: seat.load).wake.notify()

    def _removed_for(self, engine: int) -> str | None:
        """A model that no batch will come of any more, told to each engine once."""
        for key, missing in self._removing.items():
            if engine in missing and not self._lines[key].images:
                missing.remove(engine)
                self._forget_removed(key)
                return key
        return None

    def _forget_removed(self, key: str) -> None:
        """Every engine has heard that a model is removed."""
        if not self._removing[key]:
            line = self._lines.pop(key)
            self._room.take(-line.images, -line.pixels)  # none, where an engine is left
            del self._removing[key]

    def _oldest(self) -> tuple[str, ModelQueue] | None:
        """The model whose head has waited longest."""
        heads = [(head.submitted, name) for name, line in self._lines.items() if (head := line.head()) is not None]
        if not heads:
            return None
        _, name = min(heads)
        return name, self._lines[name]

    def _take(self, engine: int, name: str, line: ModelQueue) -> Batch:
        now, images, pixels = self._clock(), line.images, line.pixels
        newest_first = self._given_up > IMPATIENT_SHARE and not self._closed
        costs = line.costs[engine]
        batch = line.take(now, costs, self._late(line, costs, now), newest_first=newest_first)
        self._room.take(line.images - images, line.pixels - pixels)
        batch.model, batch.engine = name, engine
        if self._closed and batch.release == "idle_device":
            batch.release = "drain"
        if batch.items:
            self._seats[engine].begin(now, costs.seconds(len(batch.items), batch.pixels))
        return batch

    def _late(self, line: ModelQueue, costs: CostModel, now: float) -> Callable[[QueuedImage], bool]:
        """Whether an image is too late to compute: past its deadline, or would be at the end of the batch to come."""
        images = min(line.images, costs.max_batch_size)
        soonest = costs.seconds(images, line.pixels * images // max(line.images, 1))
        return lambda item: item.ticket.deadline <= now + (soonest if item.waits else 0.0)
