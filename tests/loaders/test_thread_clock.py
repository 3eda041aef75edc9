"""The clock reads what Python's own does, of this thread alone, and leaves the lock to others meanwhile."""

import time

import pytest

from milkweed.loaders import thread_clock
from milkweed.loaders.thread_clock import thread_cpu_seconds


def test_it_lies_between_two_readings_of_pythons_own() -> None:
    for _ in range(100):
        before, read, after = time.thread_time(), thread_cpu_seconds(), time.thread_time()
        assert before - 1e-9 <= read <= after + 1e-9


def test_a_failure_is_not_taken_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_clock.time, "CLOCK_THREAD_CPUTIME_ID", 99)
    with pytest.raises(OSError, match="clock 99"):
        thread_cpu_seconds()
