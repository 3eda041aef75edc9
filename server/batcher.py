"""The bounded queue between the event loop and the engine: no timer, no polling, every wait has an end."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric

from ..loaders.info import ImageInfo
from .errors import ServiceError
from .outcome import BatchResult, Outcome


class Waiter(Protocol):
    """What wakes the request when its last result is in; an asyncio future is one."""

    def done(self) -> bool: ...

    def set_result(self, result: None) -> None: ...

    def set_exception(self, exception: BaseException) -> None: ...


class Ticket:
    """One request in the queue: its images, its deadline, and the places its results go to.

    Args:
        model: name of the model that shall answer.
        top_k: classes an answer.
        deadline: perf_counter seconds after which nobody wants the answer.
        waiter: resolved when every place has an outcome.
        places: number of images of the request, the ones already refused included.
        source: who asks, as far as anybody knows.
    """

    __slots__ = ("deadline", "last", "missing", "model", "outcomes", "source", "top_k", "waiter")

    def __init__(
        self, model: str, top_k: int, deadline: float, waiter: Waiter, places: int, source: str | None = None
    ) -> None:
        self.model = model
        self.top_k = top_k
        self.deadline = deadline
        self.waiter = waiter
        self.source = source
        self.outcomes: list[Outcome | None] = [None] * places
        self.missing = 0
        self.last: BatchResult | None = None  # the batch that completed it

    def put(self, place: int, outcome: Outcome, result: BatchResult | None) -> None:
        """Store one outcome; wakes the waiter at the last one. Only the waiter's thread calls this."""
        self.outcomes[place] = outcome
        self.missing -= 1
        if not self.missing and not self.waiter.done():
            self.last = result
            self.waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the request with one error for all of it. Only the waiter's thread calls this."""
        if not self.waiter.done():
            self.waiter.set_exception(error)


@dataclass(slots=True, eq=False)
class Item:
    """One image of a ticket."""

    ticket: Ticket
    place: int
    data: bytes
    info: ImageInfo
    submitted: float = 0.0

    @property
    def pixels(self) -> int:
        """Decoded size, px."""
        return self.info.pixels


@dataclass(slots=True, eq=False)
class Batch:
    """Images of one model to compute together, and the requests found expired on the way."""

    model: str
    items: list[Item]
    release: str  # why it is not larger: full, idle_device, drain
    expired: list[Ticket] = field(default_factory=list)


@dataclass(slots=True)
class _Queue:
    """The waiting images of one model and its batch limits."""

    max_batch_size: int
    max_batch_pixels: int
    items: deque[Item] = field(default_factory=deque)


class Batcher:
    """Owns the queue. `submit` and `discard` belong to the event loop, `collect` to the engine thread.

    Args:
        max_queue_images: images that may wait, of all models together.
        clock: perf_counter seconds; tests bring their own.
    """

    def __init__(self, *, max_queue_images: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.max_queue_images = max_queue_images
        self._clock = clock
        self._wake = threading.Condition()
        self._queues: dict[str, _Queue] = {}
        self._depth = 0
        self._closed = False

    def add_model(self, name: str, *, max_batch_size: int, max_batch_pixels: int) -> None:
        """Accept images for a model from now on."""
        with self._wake:
            self._queues[name] = _Queue(max_batch_size, max_batch_pixels)

    def submit(self, ticket: Ticket, images: Sequence[tuple[int, bytes, ImageInfo]]) -> None:
        """Queue a request: all of its images or none.

        Args:
            images: place in the request, encoded bytes, header.
        Raises:
            ServiceError: `overloaded` when they do not fit, `draining` after `close`.
        """
        now = self._clock()
        with self._wake:
            if self._closed:
                raise ServiceError("draining", "the server is shutting down", retry_after_seconds=1)
            if self._depth + len(images) > self.max_queue_images:
                raise ServiceError(
                    "overloaded",
                    f"{self._depth} images wait, {len(images)} more exceed the limit {self.max_queue_images}",
                )
            ticket.missing = len(images)
            queue = self._queues[ticket.model].items
            queue.extend(Item(ticket, place, data, info, now) for place, data, info in images)
            self._depth += len(images)
            self._wake.notify()

    def discard(self, ticket: Ticket) -> int:
        """Forget a request's images that still wait, because nobody wants them; how many there were."""
        with self._wake:
            return self._remove(ticket)

    def collect(self) -> Batch | None:
        """The next batch: waits until an image is there, never longer; `None` once closed and empty."""
        with self._wake:
            while True:
                expired: list[Ticket] = []
                queue_name = self._oldest_queue(expired)
                if queue_name is not None:
                    return self._take(queue_name, expired)
                if expired:
                    return Batch("", [], "idle_device", expired)
                if self._closed:
                    return None
                self._wake.wait()

    def close(self) -> None:
        """Accept nothing more; `collect` hands out what waits and then ends."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def abandon(self) -> list[Ticket]:
        """Empty the queue without computing; the requests that were in it."""
        with self._wake:
            tickets = {item.ticket for queue in self._queues.values() for item in queue.items}
            for queue in self._queues.values():
                queue.items.clear()
            self._depth = 0
            return list(tickets)

    @property
    def depth(self) -> int:
        """Images that wait."""
        return self._depth

    def oldest_age_seconds(self) -> float:
        """How long the image at the head of the queue has waited; 0 when none does."""
        with self._wake:
            heads = [queue.items[0].submitted for queue in self._queues.values() if queue.items]
        return max(0.0, self._clock() - min(heads)) if heads else 0.0

    def collect_metrics(self) -> Iterator[Metric]:
        """The queue as gauges, for the registry."""
        labels = ["model"]
        depth = GaugeMetricFamily("milkweed_queue_depth_images", "Images that wait.", labels=labels)
        size = GaugeMetricFamily("milkweed_queue_bytes", "Encoded bytes that wait.", labels=labels)
        age = GaugeMetricFamily(
            "milkweed_queue_oldest_age_seconds",
            "How long the oldest waiting image has waited.",
            labels=labels,
        )
        now = self._clock()
        with self._wake:
            waiting = {name: list(queue.items) for name, queue in self._queues.items()}
        for name, items in waiting.items():
            depth.add_metric([name], len(items))
            size.add_metric([name], sum(len(item.data) for item in items))
            age.add_metric([name], max(0.0, now - items[0].submitted) if items else 0.0)
        yield from (depth, size, age)

    def _oldest_queue(self, expired: list[Ticket]) -> str | None:
        """The model whose head has waited longest, heads that are too late dropped into `expired`."""
        now = self._clock()
        oldest: tuple[float, str] | None = None
        for name, queue in self._queues.items():
            self._drop_late_head(queue, now, expired)
            if queue.items and (oldest is None or queue.items[0].submitted < oldest[0]):
                oldest = queue.items[0].submitted, name
        return oldest[1] if oldest else None

    def _drop_late_head(self, queue: _Queue, now: float, expired: list[Ticket]) -> None:
        while queue.items and queue.items[0].ticket.deadline <= now:
            ticket = queue.items[0].ticket
            self._remove(ticket)
            expired.append(ticket)

    def _take(self, name: str, expired: list[Ticket]) -> Batch:
        """As many images as the batch limits let through; at least the one at the head."""
        queue, now = self._queues[name], self._clock()
        items: list[Item] = []
        pixels = 0
        while queue.items and len(items) < queue.max_batch_size:
            pixels += queue.items[0].pixels
            if items and pixels > queue.max_batch_pixels:
                break
            items.append(queue.items.popleft())
            self._depth -= 1
            self._drop_late_head(queue, now, expired)
        full = bool(queue.items) or len(items) == queue.max_batch_size
        release = "full" if full else "drain" if self._closed else "idle_device"
        # A request found late while one of its images was already taken is not computed either.
        late = set(expired)
        return Batch(name, [item for item in items if item.ticket not in late], release, expired)

    def _remove(self, ticket: Ticket) -> int:
        queue = self._queues.get(ticket.model)
        if queue is None:
            return 0
        before = len(queue.items)
        queue.items = deque(item for item in queue.items if item.ticket is not ticket)
        removed = before - len(queue.items)
        self._depth -= removed
        return removed
