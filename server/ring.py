"""Ring: decoded batches on their way from the thread that loads to the thread that owns the device; bounded."""

import threading
from collections import deque
from dataclasses import dataclass

from .loading import Loaded
from .ticket import Batch


@dataclass(frozen=True, slots=True)
class Waiting:
    """A batch whose images are decoded."""

    batch: Batch
    loaded: Loaded


class Ring:
    """One thread puts, one takes. What waits together goes into one forward, so that decoding ahead, as images come,
    costs the device no batch size.

    Args:
        max_images: of one forward. As many may wait decoded before the loading thread has to wait, too.
    """

    def __init__(self, max_images: int) -> None:
        self._max_images = max_images
        self._wake = threading.Condition()
        self._waiting: deque[Waiting | str] = deque()
        self._closed = False

    def wait_for_room(self) -> bool:
        """Until fewer images wait than one forward takes; False once the ring is closed."""
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._images() < self._max_images)
            return not self._closed

    def put(self, waiting: Waiting | str) -> None:
        """Add a batch; `wait_for_room` says when. Or the key of a model that no batch will come for any more."""
        with self._wake:
            self._waiting.append(waiting)
            self._wake.notify_all()

    def take(self) -> list[Waiting] | str:
        """All of the oldest batch's model that go into one forward, or a model's end; none once closed and empty."""
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._waiting)
            taken: list[Waiting] = []
            images = 0
            while self._waiting:
                first = self._waiting[0]
                if isinstance(first, str):
                    if taken:
                        break
                    self._waiting.popleft()
                    return first
                images += len(first.batch.items)
                if taken and (images > self._max_images or first.batch.model != taken[0].batch.model):
                    break
                taken.append(first)
                self._waiting.popleft()
            self._wake.notify_all()
            return taken

    @property
    def closed(self) -> bool:
        """Nothing comes any more."""
        return self._closed

    def close(self) -> None:
        """Nothing comes any more; what waits can still be taken."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _images(self) -> int:
        return sum(len(waiting.batch.items) for waiting in self._waiting if isinstance(waiting, Waiting))
