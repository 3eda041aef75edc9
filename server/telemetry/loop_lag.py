"""Measures how late the event loop runs its timers; a request waits as long to be read, and again to be answered."""

import asyncio

from prometheus_client import Histogram

TICK_SECONDS = 0.1


class LoopLag:
    """Measures the running event loop by a timer of its own. `histogram`: observes the lag of each tick, seconds."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lag = self._due = 0.0

    def start(self) -> None:
        """Measure the running loop from now on."""
        self._loop = asyncio.get_running_loop()
        self._tick(self._loop.time())

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()

    def seconds(self) -> float:
        """How late the loop is now."""
        overdue = self._loop.time() - self._due if self._loop is not None and self._due else 0.0
        return max(self._lag, overdue)

    def _tick(self, due: float) -> None:
        assert self._loop is not None
        now = self._loop.time()
        self._lag = max(0.0, now - due)
        self._histogram.observe(self._lag)
        self._due = due = now + TICK_SECONDS
        self._timer = self._loop.call_at(due, self._tick, due)
