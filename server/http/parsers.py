"""Threads that parse bodies and write answers where that takes long, so that the event loop goes on."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

INLINE_BYTES = 1 << 20
"""Work on so many bytes (about 1 ms) is done at once; work on more goes to a thread."""

THREADS = 2
PAUSE_SECONDS = 0.002

_here = threading.local()


class Parsers:
    """The threads. Metrics are collected on others, which no body can keep busy."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(THREADS, "milkweed-parse", initializer=_mark)

    async def run(self, work: Callable[[], T], size: int) -> T:
        """Call `work` here where it is small, else on a thread.

        Args:
            size: bytes that `work` goes through, or as many as would take as long.
        """
        if size <= INLINE_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    def close(self) -> None:
        """End the threads without waiting for what they do; work that waits for one is dropped."""
        self.threads.shutdown(wait=False, cancel_futures=True)


def give_way() -> None:
    """Sleep for a moment on such a thread, and do nothing on any other; long work calls this about every millisecond.

    While a thread goes on without a pause, the engine waits up to a switch interval for Python's lock before each
    operation of a forward.
    """
    if getattr(_here, "parses", False):
        time.sleep(PAUSE_SECONDS)


def _mark() -> None:
    _here.parses = True
