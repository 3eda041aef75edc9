"""Counts which sources send bodies that break a decoder; a source is in quarantine while its recent count is high."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
"""After this time, about a third of a count is left (1/e): counts fade exponentially."""

MIN_FAILURES = 2.5
"""Three failures within some ten seconds reach this, since the first ones fade meanwhile."""

MIN_SHARE = 0.02
"""Share of failures in a source's images. A broken batch costs as much as two, so below this DALI is still faster."""

MAX_SOURCES = 1024


@dataclass
class _Record:
    """Images and failures of a source, faded up to the time `at`."""

    images: float
    failures: float
    at: float


class Quarantine:
    """Keeps the counts of all sources; a source that is None is not counted. Several threads may use it.

    Several clients behind one proxy are one source, which is why a share is needed too: many good images keep it low.

    Args:
        clock: a monotonic clock in seconds.
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
            return record is not None and _breaks_often(record)

    def __len__(self) -> int:
        """Number of sources in quarantine now."""
        with self._lock:
            return sum(_breaks_often(record) for source in list(self._records) if (record := self._faded(source)))

    def _faded(self, source: str) -> _Record | None:
        record = self._records.get(source)
        if record is not None:
            now = self._clock()
            left = math.exp(-(now - record.at) / WINDOW_SECONDS)
            record.images, record.failures, record.at = record.images * left, record.failures * left, now
        return record


def _breaks_often(record: _Record) -> bool:
    return record.failures >= MIN_FAILURES and record.failures >= MIN_SHARE * record.images
