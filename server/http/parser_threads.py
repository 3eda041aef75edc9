"""Runs the parsing of large bodies and the writing of large answers on threads, so that the event loop goes on."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ...inference.yielding import mark_yielding_thread

T = TypeVar("T")

INLINE_BYTES = 1 << 20
"""Work on so many bytes, about 1 ms, is done at once; more goes to a thread."""

THREADS = 2


class ParserThreads:
    """The threads. Metrics are collected on other threads, so that no body can delay a scrape."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(THREADS, "milkweed-parse", initializer=mark_yielding_thread)

    async def run(self, work: Callable[[], T], size: int) -> T:
        """Call `work` here where it is small, else on a thread. `size`: bytes that `work` goes through, or so many as
        would take as long."""
        if size <= INLINE_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    def close(self) -> None:
        """End the threads without waiting for them; work that waits for a thread is dropped."""
        self.threads.shutdown(wait=False, cancel_futures=True)
