"""Tells how long a search may still take, and whether it had the machine to itself."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import psutil

from ..models.progress import Progress

BUSY = 0.1
"""The share of the cores that other programs may use before it is said."""

KINDS = ("user", "nice", "system", "irq", "softirq", "steal")
"""The kinds of a processor's time that make up its work; the others are idle, or counted in these already."""


class Pace:
    """Counts the models of a search.

    Args:
        left: how many are expected.
    """

    def __init__(self, progress: Progress, left: int) -> None:
        self._progress, self._left, self._done, self._seconds = progress, left, 0, list[float]()
        self._other: dict[str, float] = {}
        self._started = time.perf_counter(), _seconds_of_others()

    def expect(self, left: int) -> None:
        """So many models are left at most, as far as is known now."""
        self._left = left

    def expect_seconds(self, **parts: float) -> None:
        """Parts of the search that measure no model take so many seconds more, as far as is known now; 0 once done."""
        self._other |= parts

    @contextmanager
    def model(self, *, on_record: bool) -> Iterator[None]:
        """Measure one more; the time of one that was on record says nothing about the others."""
        started = time.perf_counter()
        yield
        self._done, self._left = self._done + 1, max(0, self._left - 1)
        if on_record:
            return
        self._seconds.append(time.perf_counter() - started)
        minutes = (self._left * median(self._seconds) + sum(self._other.values())) / 60
        left = f", about {max(1, round(minutes))} min left" if self._left else ""
        self._progress.note(f"search: {self._done} of {self._done + self._left} models{left}")

    def note_others(self) -> None:
        """Say how many cores other programs have used since the start, in the mean, where they were many."""
        started, before = self._started
        used = (_seconds_of_others() - before) / max(1e-3, time.perf_counter() - started)
        if used > BUSY * (cores := os.cpu_count() or 1):
            self._progress.note(f"other programs used {used:.1f} of the {cores} cores: times are of a busy machine")


def _seconds_of_others() -> float:
    """CPU seconds of the whole machine but for this process and its ended children; steal is of other machines."""
    machine, ours = psutil.cpu_times(), os.times()
    return sum(getattr(machine, kind, 0.0) for kind in KINDS) - sum(ours[:4])
