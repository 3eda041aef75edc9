"""Suspects: who keeps sending bodies that break a decoder, counted so that a grudge fades."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
"""After which a third of what was counted is left."""

MIN_FAILURES = 2.5
"""Three within some ten seconds: the first ones fade meanwhile."""

MIN_SHARE = 0.02
"""Of a source's images: a broken batch costs about as much as two, so with fewer the fast way still is."""

MAX_SOURCES = 1024


@dataclass
class _Record:
    """Images and failures of a source, faded up to `at`."""

    images: float
    failures: float
    at: float


class Quarantine:
    """Opaque sources and what they sent. Safe among threads; a source that is None is nobody.

    Several clients behind one proxy are one source: hence the share, which many good images keep low.

    Args:
        clock: seconds that only grow; tests bring their own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: OrderedDict[str, _Record] = OrderedDict()  # least recently seen first

    def saw(self, source: str | None, images: int = 1, failures: int = 0) -> None:
        """Count images of a source and how many of them a decoder could not take."""
        if source is None:
            return
        with self._lock:
            record = self._faded(source) or _Record(0.0, 0.0, self._clock())
            record.images += images
            record.failures += failures
            self._records[source] = record
            self._records.move_to_end(source)
            while len(self._records) > MAX_SOURCES:
                self._records.popitem(last=False)

    def holds(self, source: str | None) -> bool:
        """Whether bodies of this source should be decoded where they can break nothing."""
        if source is None:
            return False
        with self._lock:
            record = self._faded(source)
            return record is not None and _suspicious(record)

    def __len__(self) -> int:
        """Sources held now."""
        with self._lock:
            return sum(_suspicious(record) for source in list(self._records) if (record := self._faded(source)))

    def _faded(self, source: str) -> _Record | None:
        record = self._records.get(source)
        if record is not None:
            now = self._clock()
            left = math.exp(-(now - record.at) / WINDOW_SECONDS)
            record.images, record.failures, record.at = record.images * left, record.failures * left, now
        return record


def _suspicious(record: _Record) -> bool:
    return record.failures >= MIN_FAILURES and record.failures >= MIN_SHARE * record.images
