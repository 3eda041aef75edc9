"""Estimates how long a search may still take, by what its models took and its other parts are expected to."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from ...models.progress import Progress


class Pace:
    """Counts the models of a search.

    Args:
        left: how many are expected.
    """

    def __init__(self, progress: Progress, left: int) -> None:
        self._progress, self._left, self._done, self._seconds = progress, left, 0, list[float]()
        self._other: dict[str, float] = {}

    def expect(self, left: int) -> None:
        """So many models are left at most, as far as is known now."""
        self._left = left

    def expect_seconds(self, **parts: float) -> None:
        """Parts of the search that measure no model take so many seconds more, as far as is known now; 0 once done."""
        self._other |= parts

    @contextmanager
    def model(self, was_measured: Callable[[], bool]) -> Iterator[None]:
        """Measure one more; the time of one that was on record says nothing about the others."""
        started = time.perf_counter()
        yield
        self._done, self._left = self._done + 1, max(0, self._left - 1)
        if not was_measured():
            return
        self._seconds.append(time.perf_counter() - started)
        minutes = (self._left * median(self._seconds) + sum(self._other.values())) / 60
        left = f", about {max(1, round(minutes))} min left" if self._left else ""
        self._progress.note(f"search: {self._done} of {self._done + self._left} models{left}")
