"""The bounded queue between the event loop and the engine: no timer, no polling, every wait has an end.

A request is taken only if it can be answered in time: what waits before it, what runs now and its own images, at the
costs that batches were seen to have, against its deadline. So the device never works for callers who have gone.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from ..loaders.info import ImageInfo
from .costs import BatchCosts
from .errors import ServiceError
from .line import Line
from .ticket import Batch, Item, Priority, Ticket

REMOVED = "removed"
"""Why a batch is empty that stands for a model's end."""

IMPATIENT_SHARE = 0.3
"""Of requests that are given up before their answer: from then on the newest are computed first. In the order they
came, all would be computed just as their callers leave, and nobody would be answered."""

PATIENCE_GAIN = 1 / 32

BULK_SHARE = 0.5
"""Of the queue, at most: bulk never keeps interactive requests out."""


class Batcher:
    """Owns the queue. `submit` and `discard` belong to the event loop, `collect` to the engine's threads.

    Args:
        max_queue_images, max_queue_pixels: that may wait, of all models together.
        clock: perf_counter seconds; tests bring their own.
    """

    def __init__(
        self,
        *,
        max_queue_images: int,
        max_queue_pixels: int = 1 << 62,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.max_queue_images = max_queue_images
        self.max_queue_pixels = max_queue_pixels
        self._clock = clock
        self._wake = threading.Condition()
        self._lines: dict[str, Line] = {}
        self._removing: set[str] = set()
        self._given_up = 0.0  # smoothed share of requests
        self._depth = self._pixels = 0
        self._running = 0  # batches taken and not done
        self._busy_until = 0.0  # when they should be
        self._closed = False

    def add_model(
        self,
        key: str,
        *,
        max_batch_pixels: int,
        costs: BatchCosts,
        label: str | None = None,
        max_images: int | None = None,
    ) -> None:
        """Accept images for a model from now on.

        Args:
            key: what tickets call it.
            label: what metrics call it; the key where none is given.
            max_images: that may wait of all that have this label; None: as many as of all models.
        """
        with self._wake:
            self._lines[key] = Line(max_batch_pixels, costs, label or key, max_images)

    def remove_model(self, key: str) -> None:
        """Accept no more images for a model; once none waits, `collect` hands out a batch that says it is removed."""
        with self._wake:
            self._removing.add(key)
            self._wake.notify_all()

    def submit(
        self, ticket: Ticket, images: Sequence[tuple[int, bytes, ImageInfo]], *, unseen_seconds: float = 0.0
    ) -> None:
        """Queue a request: all of its images or none.

        Args:
            images: place in the request, encoded bytes, header.
            unseen_seconds: of the deadline that pass before a request is seen and after its answer is there.

        Raises:
            ServiceError: `overloaded` where they do not fit or cannot be answered in time, `draining` after `close`.
        """
        now = self._clock()
        pixels = sum(info.pixels for _, _, info in images)
        with self._wake:
            if self._closed:
                raise ServiceError("draining", "the server is shutting down", retry_after_seconds=1)
            self._check_room(ticket, len(images), pixels)
            self._check_time(ticket, len(images), pixels, now, unseen_seconds)
            ticket.missing = len(images)
            line, waits = self._lines[ticket.model], not self._is_idle()
            for place, data, info in images:
                line.add(Item(ticket, place, data, info, now, waits))
            self._depth += len(images)
            self._pixels += pixels
            self._wake.notify()

    def answered(self) -> None:
        """A request got its answer."""
        self._given_up -= PATIENCE_GAIN * self._given_up

    def discard(self, ticket: Ticket) -> int:
        """Forget a request's images that still wait, because nobody wants them; how many there were."""
        with self._wake:
            self._given_up += PATIENCE_GAIN * (1 - self._given_up)
            line = self._lines.get(ticket.model)
            if line is None:
                return 0
            pixels = line.pixels
            removed = line.remove(ticket)
            self._left(removed, pixels - line.pixels)
            return removed

    def collect(self, give_up: Callable[[], bool] = lambda: False) -> Batch | None:
        """The next batch: waits until an image is there, never longer; `None` once closed and empty.

        Args:
            give_up: asked whenever `wake` is called; `None` is the answer once it says so.
        """
        with self._wake:
            while not give_up():
                gone = next((key for key in self._removing if not self._lines[key].images), None)
                if gone is not None:
                    self._removing.remove(gone)
                    del self._lines[gone]
                    return Batch(gone, [], REMOVED)
                found = self._oldest()
                if found is not None:
                    return self._take(*found)
                if self._closed:
                    return None
                self._wake.wait()
            return None

    def wake(self) -> None:
        """Have a waiting `collect` ask whether to give up."""
        with self._wake:
            self._wake.notify_all()

    def done(self) -> None:
        """A batch that `collect` handed out is computed, or lost."""
        with self._wake:
            self._running = max(0, self._running - 1)
            if not self._running:
                self._busy_until = self._clock()

    def close(self) -> None:
        """Accept nothing more; `collect` hands out what waits and then ends."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def abandon(self) -> list[Ticket]:
        """Empty the queue without computing; the requests that were in it."""
        with self._wake:
            tickets = {ticket for line in self._lines.values() for ticket in line.clear()}
            self._depth = self._pixels = 0
            return list(tickets)

    @property
    def closed(self) -> bool:
        """Accepts nothing more."""
        return self._closed

    @property
    def depth(self) -> int:
        """Images that wait."""
        return self._depth

    def wait_seconds(self, priority: Priority = "bulk") -> float:
        """When what runs now and waits before a request that came now should be done."""
        with self._wake:
            return self._ahead_seconds(priority, self._clock(), {})

    def oldest_age_seconds(self) -> float:
        """How long the image that has waited longest has waited; 0 when none does."""
        with self._wake:
            came = [at for line in self._lines.values() if (at := line.oldest_submitted()) is not None]
        return max(0.0, self._clock() - min(came)) if came else 0.0

    def collect_metrics(self) -> Iterator[Metric]:
        """The queue as gauges, for the registry."""
        labels = ["model"]
        depth = GaugeMetricFamily("milkweed_queue_depth_images", "Images that wait.", labels=labels)
        size = GaugeMetricFamily("milkweed_queue_bytes", "Encoded bytes that wait.", labels=labels)
        pixels = GaugeMetricFamily("milkweed_queue_pixels", "Decoded pixels of the images that wait.", labels=labels)
        age = GaugeMetricFamily(
            "milkweed_queue_oldest_age_seconds",
            "How long the oldest waiting image has waited.",
            labels=labels,
        )
        now = self._clock()
        with self._wake:
            found = [
                (line.label, line.images, line.bytes, line.pixels, line.oldest_submitted())
                for line in self._lines.values()
            ]
        for label in dict.fromkeys(label for label, *_ in found):
            same = [each for each in found if each[0] == label]  # versions of one name
            came = [at for *_, at in same if at is not None]
            depth.add_metric([label], sum(images for _, images, *_ in same))
            size.add_metric([label], sum(held for _, _, held, *_ in same))
            pixels.add_metric([label], sum(area for _, _, _, area, _ in same))
            age.add_metric([label], max(0.0, now - min(came)) if came else 0.0)
        predicted = GaugeMetricFamily(
            "milkweed_queue_predicted_wait_seconds", "When what runs and waits now should be done."
        )
        predicted.add_metric([], self.wait_seconds())
        yield from (depth, size, pixels, age, predicted)

    def _check_room(self, ticket: Ticket, images: int, pixels: int) -> None:
        bulk = ticket.priority == "bulk"
        limit = max(1, int(self.max_queue_images * BULK_SHARE)) if bulk else self.max_queue_images
        if self._depth + images > limit:
            what = "bulk " if bulk else ""
            raise ServiceError("overloaded", f"{self._depth} images wait, {images} more exceed the {what}limit {limit}")
        line = self._lines[ticket.model]
        if line.max_images is not None:
            self._check_room_of(line, images, bulk)
        # one request alone always fits: its images were found small enough each
        if self._depth and self._pixels + pixels > self.max_queue_pixels:
            raise ServiceError(
                "overloaded", f"{self._pixels} pixels wait, {pixels} more exceed the limit {self.max_queue_pixels}"
            )

    def _check_room_of(self, line: Line, images: int, bulk: bool) -> None:
        """What one model may have waiting: a flood of it keeps no other model's requests out."""
        assert line.max_images is not None
        waiting = sum(each.images for each in self._lines.values() if each.label == line.label)
        limit = max(1, int(line.max_images * BULK_SHARE)) if bulk else line.max_images
        if waiting + images > limit:
            what = "bulk " if bulk else ""
            raise ServiceError(
                "overloaded",
                f"{waiting} images of {line.label} wait, {images} more exceed the {what}limit {limit} of this model",
            )

    def _check_time(self, ticket: Ticket, images: int, pixels: int, now: float, unseen: float) -> None:
        """Refuse what would be late. An idle device tries whatever comes: estimates are corrected by what runs."""
        ahead = self._ahead_seconds(ticket.priority, now, {ticket.model: (images, pixels)})
        if self._given_up <= IMPATIENT_SHARE:  # else it goes in another order
            ticket.foretold = now + ahead
        if self._is_idle():
            return
        ahead += self._lines[ticket.model].costs.slack_seconds()
        left = ticket.deadline - now - unseen
        if ahead > left:
            raise ServiceError(
                "overloaded",
                f"the answer would take {ahead * 1e3:.0f} ms and {max(0.0, left) * 1e3:.0f} ms are left: "
                f"{self._depth} images wait",
            )

    def _ahead_seconds(self, priority: Priority, now: float, more: Mapping[str, tuple[int, int]]) -> float:
        """What runs and waits, with so many images and pixels more of a model."""
        ahead = max(0.0, self._busy_until - now)
        for name, line in self._lines.items():
            images, pixels = (line.images, line.pixels) if priority == "bulk" else line.before_interactive(now)
            more_images, more_pixels = more.get(name, (0, 0))
            ahead += line.costs.seconds(images + more_images, pixels + more_pixels)
        return ahead

    def _is_idle(self) -> bool:
        return not self._depth and not self._running

    def _oldest(self) -> tuple[str, Line] | None:
        """The model whose head has waited longest."""
        heads = [(head.submitted, name) for name, line in self._lines.items() if (head := line.head()) is not None]
        if not heads:
            return None
        _, name = min(heads)
        return name, self._lines[name]

    def _take(self, name: str, line: Line) -> Batch:
        now, images, pixels = self._clock(), line.images, line.pixels
        newest_first = self._given_up > IMPATIENT_SHARE and not self._closed
        batch = line.take(now, self._late(line, now), newest_first=newest_first)
        self._left(images - line.images, pixels - line.pixels)
        batch.model = name
        if self._closed and batch.release == "idle_device":
            batch.release = "drain"
        if batch.items:
            begins = max(now, self._busy_until) if self._running else now
            self._busy_until = begins + line.costs.seconds(len(batch.items), batch.pixels)
            self._running += 1
        return batch

    def _late(self, line: Line, now: float) -> Callable[[Item], bool]:
        """Whether an image is too late to compute: past its deadline, or would be at the end of the batch to come."""
        images = min(line.images, line.costs.max_batch_size)
        soonest = line.costs.seconds(images, line.pixels * images // max(line.images, 1))
        return lambda item: item.ticket.deadline <= now + (soonest if item.waits else 0.0)

    def _left(self, images: int, pixels: int) -> None:
        """So much waits no more."""
        self._depth -= images
        self._pixels -= pixels
