"""Ring: decoded batches on their way from the thread that loads to the thread that owns the device; bounded."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...inference.decode_stage import DecodedBatch
from ..scheduler.request import Batch


@dataclass(frozen=True, slots=True)
class DecodedAhead:
    """A batch whose images are decoded."""

    batch: Batch
    loaded: DecodedBatch


class DecodedQueue:
    """One thread puts, one takes. What waits together goes into one forward, so that decoding ahead, as images come,
    costs the device no batch size.

    Args:
        limit: images of one forward of a model, by its key. As many may wait decoded before the loading thread has to.
    """

    def __init__(self, limit: Callable[[str], int]) -> None:
        self._limit = limit
        self._wake = threading.Condition()
        self._line: deque[DecodedAhead | str] = deque()
        self._closed = False

    @property
    def images(self) -> int:
        """That wait decoded."""
        return sum(len(each.batch.items) for each in list(self._line) if isinstance(each, DecodedAhead))

    @property
    def closed(self) -> bool:
        """Nothing comes any more."""
        return self._closed

    def wait_for_room(self) -> bool:
        """Until fewer images wait than the next forward takes; False once the ring is closed."""
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._has_room())
            return not self._closed

    def put(self, each: DecodedAhead | str) -> None:
        """Add a batch; `wait_for_room` says when. Or the key of a model that no batch will come for any more."""
        with self._wake:
            self._line.append(each)
            self._wake.notify_all()

    def take(self) -> list[DecodedAhead] | str:
        """All of the oldest batch's model that go into one forward, or a model's end; none once closed and empty."""
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._line)
            taken: list[DecodedAhead] = []
            images = 0
            while self._line:
                first = self._line[0]
                if isinstance(first, str):
                    if not taken:
                        self._line.popleft()
                        return first
                    break
                model, images = first.batch.model, images + len(first.batch.items)
                if taken and (model != taken[0].batch.model or images > self._limit(model)):
                    break
                taken.append(first)
                self._line.popleft()
            self._wake.notify_all()
            return taken

    def close(self) -> None:
        """Nothing comes any more; what waits can still be taken."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _has_room(self) -> bool:
        first = next((each for each in self._line if isinstance(each, DecodedAhead)), None)
        return first is None or self.images < self._limit(first.batch.model)
