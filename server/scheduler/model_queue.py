"""ModelQueue: the waiting images of one model, interactive and bulk, and what the next batch takes of them.

Interactive flows take turns, an image each, and the image of a flow that has none waiting goes before those of flows
that have (as in FQ-CoDel, RFC 8290): whoever has many images waiting hardly delays others. Where no flow has two images
waiting, it is first come, first served.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice, takewhile
from operator import attrgetter

from .cost_model import CostModel
from .request import Batch, QueuedImage, Request

MOST_OVERTAKING = 4
"""Times the flows: so many images of flows that have no other waiting go before the next turn of those that have; these
get at least a fifth of what they would in strict turns, and nobody starves."""

MOST_BESIDE = 2
"""Where a batch costs by the image, as on a CPU, one with images of flows that have no other waiting takes at most so
many of the others: they are answered sooner, and nothing is lost."""

_TURN = attrgetter("turn")


class ModelQueue:
    """Belongs to the scheduler, which holds its lock around every call.

    Args:
        model: its key.
        max_batch_pixels: decoded pixels of one batch; one image may exceed them.
        costs: the cost model of each engine.
        label: what metrics call the model.
        max_images: how many images of all versions of the model may wait; None: as many as of all models.
    """

    def __init__(
        self,
        model: str,
        max_batch_pixels: int,
        costs: Sequence[CostModel],
        label: str,
        max_images: int | None = None,
    ) -> None:
        self.model = model
        self.costs = costs
        self.label = label
        self.max_images = max_images
        self.max_batch_pixels = max_batch_pixels
        self.images = self.pixels = self.bytes = self._interactive_pixels = self._shadows = self._shadow_pixels = 0
        self._interactive: deque[QueuedImage] = deque()  # by turns, and as they came
        self._bulk: deque[QueuedImage] = deque()
        self._turn = 0  # of the image of a flow that has none waiting; flows that have are at the next
        self._taken = 0  # images of this turn that were taken
        self._flows: Counter[Hashable] = Counter()  # interactive images of each
        self._last_turns: dict[Hashable, int] = {}  # of each that has some

    def __iter__(self) -> Iterator[QueuedImage]:
        yield from self._interactive
        yield from self._bulk

    def add(self, item: QueuedImage) -> None:
        """Put a bulk image at the end, but before shadows, an interactive one behind those whose turn comes first."""
        queue, item.turn = self._bulk, int(item.request.shadow)
        if item.request.priority == "interactive":
            queue, item.turn = self._interactive, self._turn_after(item.request.flow, 1)
            self._last_turns[item.request.flow] = item.turn
        if queue and queue[-1].turn > item.turn:
            place = bisect_right(queue, item.turn, key=_TURN)
            for overtaken in islice(queue, place, None):
                overtaken.request.expected_finish = None
            queue.insert(place, item)
        else:
            queue.append(item)
        self._count(item, 1)

    def remove(self, request: Request) -> int:
        """Drop a request's images; returns how many there were."""
        before = self.images
        for queue in (self._interactive, self._bulk):
            kept = [item for item in queue if item.request is not request]
            if len(kept) < len(queue):
                for item in queue:
                    if item.request is request:
                        self._count(item, -1)
                queue.clear()
                queue.extend(kept)
        if request.flow in self._last_turns:
            turns = (item.turn for item in self._interactive if item.request.flow == request.flow)
            self._last_turns[request.flow] = max(turns)
        return before - self.images

    def clear(self) -> set[Request]:
        """Drop all images; returns their requests."""
        requests = {item.request for item in self}
        self._interactive.clear()
        self._bulk.clear()
        self._flows.clear()
        self._last_turns.clear()
        self.images = self.pixels = self.bytes = self._interactive_pixels = self._shadows = self._shadow_pixels = 0
        return requests

    def peek(self) -> QueuedImage | None:
        """The image whose turn it is."""
        queue = self._next()
        return queue[0] if queue else None

    def waiting(self, *, shadows: bool) -> tuple[int, int]:
        """Images that wait and their pixels, with shadows or without."""
        return (
            (self.images, self.pixels) if shadows else (self.images - self._shadows, self.pixels - self._shadow_pixels)
        )

    def oldest_submitted(self) -> float | None:
        """When the image that has waited longest came."""
        return min((item.submitted for item in self), default=None)

    def before(self, now: float, request: Request | None = None, images: int = 0) -> tuple[int, int]:
        """Images and pixels that go before interactive ones that come now: bulk only once some of it is overdue.

        Args:
            request: count only what goes before the last of so many new images of it; None: all that is interactive.
        """
        if self._overdue(now):
            return self.images, self.pixels
        queue = self._interactive
        if request is not None and queue and queue[-1].turn > (last := self._turn_after(request.flow, images)):
            before = bisect_right(queue, last, key=_TURN)
            return before, sum(item.pixels for item in islice(queue, before))
        return len(queue), self._interactive_pixels

    def pop_batch(
        self,
        now: float,
        engine_id: int,
        is_late: Callable[[QueuedImage], bool],
        *,
        newest_first: bool = False,
        draining: bool = False,
    ) -> Batch:
        """The next batch: images in turn, as many as limits and measured costs let; bulk in places left empty.

        Args:
            engine_id: of the engine that takes it.
            is_late: whether an image need not be computed any more; its whole request is then dropped.
            newest_first: take the interactive images that have waited longest last.
            draining: nothing more will come.
        """
        costs = self.costs[engine_id]
        expired: list[Request] = []
        most = costs.max_batch_size
        count = min(len(self._interactive) + self._overdue(now) or self.waiting(shadows=False)[0] or self.images, most)
        single = bisect_right(self._interactive, self._turn, key=_TURN)  # of flows that have no other waiting
        if single and not costs.sizes and len(self._flows) > 1:
            count = min(count, single + MOST_BESIDE)
        size = costs.best_size(count)
        items, pixels = self._pop(size, 0, is_late, expired, newest_first)
        cut_by_pixels = len(items) < size and self.images > 0
        if items and costs.sizes:  # what the size is computed with anyway
            places = costs.size_of(len(items)) - len(items)
            items += self._pop(places, pixels, is_late, expired, newest_first)[0]
        late = set(expired)
        items = [item for item in items if item.request not in late]
        full, open_end = cut_by_pixels or len(items) == most, "drain" if draining else "idle_device"
        reason = "full" if full else "captured" if size < count else open_end
        return Batch(self.model, engine_id, items, reason, expired)

    def _pop(
        self, most: int, pixels: int, is_late: Callable[[QueuedImage], bool], expired: list[Request], newest_first: bool
    ) -> tuple[list[QueuedImage], int]:
        """Take at most `most` images that fit beside the pixels of a batch; also return the pixels of all together."""
        items: list[QueuedImage] = []
        while len(items) < most:
            self._drop_late(is_late, expired)
            queue = self._next()
            backwards = newest_first and queue is self._interactive
            if not queue or (
                (items or pixels) and pixels + queue[-1 if backwards else 0].pixels > self.max_batch_pixels
            ):
                break
            item = queue.pop() if backwards else queue.popleft()
            if not backwards:
                self._advance(item)
            self._count(item, -1)
            items.append(item)
            pixels += item.pixels
        self._drop_late(is_late, expired)
        return items, pixels

    def _drop_late(self, is_late: Callable[[QueuedImage], bool], expired: list[Request]) -> None:
        while (queue := self._next()) and is_late(queue[0]):
            request = queue[0].request
            self.remove(request)
            expired.append(request)

    def _overdue(self, now: float) -> int:
        """How many bulk images wait their turn like the others."""
        return sum(1 for _ in takewhile(lambda item: item.due <= now, self._bulk))

    def _next(self) -> deque[QueuedImage] | None:
        """The queue, interactive or bulk, whose first image is next."""
        if not self._bulk or not self._interactive:
            return self._interactive or self._bulk or None
        return self._bulk if self._bulk[0].due < self._interactive[0].due else self._interactive

    def _count(self, item: QueuedImage, sign: int) -> None:
        self.images += sign
        self.pixels += sign * item.pixels
        self.bytes += sign * len(item.data)
        if item.request.priority == "interactive":
            self._interactive_pixels += sign * item.pixels
            self._flows[item.request.flow] += sign
            if not self._flows[item.request.flow]:
                del self._flows[item.request.flow], self._last_turns[item.request.flow]
        elif item.request.shadow:
            self._shadows += sign
            self._shadow_pixels += sign * item.pixels

    def _advance(self, image: QueuedImage) -> None:
        """Begin the next turn once an image of the one behind it is taken, or enough of this one."""
        self._taken += image.turn == self._turn
        if image.turn > self._turn + 1 or self._taken > MOST_OVERTAKING * len(self._flows):
            self._turn, self._taken = max(self._turn + 1, image.turn - 1), 0

    def _turn_after(self, flow: Hashable, images: int) -> int:
        """The turn of the last of so many new images of a flow."""
        return max(self._turn, self._last_turns.get(flow, -1) + 1) + images - 1
