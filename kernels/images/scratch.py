"""Memory that a thread writes again for the next picture: the system does not have to provide new pages."""

import threading

import numpy as np
from numpy.typing import NDArray

MAX_KEPT_BYTES = 4 << 20
"""What a thread keeps at most, by purpose: a picture of a megapixel and a half."""


class Scratch(threading.local):
    """A buffer for one purpose; threads do not share it."""

    def __init__(self) -> None:
        self._kept = np.empty(0, np.uint8)

    def bytes(self, count: int) -> NDArray[np.uint8]:
        """Return so many bytes, in which the thread's next call writes again."""
        if count > MAX_KEPT_BYTES:
            return np.empty(count, np.uint8)
        if count > len(self._kept):
            self._kept = np.empty(count, np.uint8)
        return self._kept[:count]
