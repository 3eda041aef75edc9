"""Runs work on threads beside the event loop: the parsing of large bodies, the writing of large answers, and more."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from ...inference.yielding import mark_yielding_thread
from ..errors import ServiceError

T = TypeVar("T")

INLINE_BYTES = 1 << 20
"""Work on so many bytes, about 1 ms, is done at once; more goes to a thread."""

THREADS = 2


class ParserThreads:
    """Bounds how many threads parse. Belongs to the event loop."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(THREADS)
        self._threads = KeptThreads(THREADS, "milkweed-parse")

    async def run(self, work: Callable[[], T], size: int) -> T:
        """Call `work` here where it is small, else on a thread. `size`: bytes that `work` goes through, or so many as
        would take as long."""
        if size <= INLINE_BYTES:
            return work()

        def yielding() -> T:
            mark_yielding_thread()
            return work()

        async with self._places:
            thread = self._threads.start(yielding)
            try:
                return await asyncio.shield(thread)
            except asyncio.CancelledError:
                await asyncio.wait((thread,))  # it still has the body, which the caller's lease counts until we return
                raise
            finally:
                del thread  # its error's frames have this one among them

    def close(self) -> None:
        """End the threads, each after its work."""
        self._threads.close()


def start_thread(work: Callable[[], T], name: str) -> "asyncio.Future[T]":
    """Begin `work` on a thread of its own, so that none dies with another; the future is done when it has let go of it.

    It cannot be cancelled: await a `shield`, and count what it holds until it is done. Raises ServiceError `overloaded`
    where the system gives no thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    try:
        threading.Thread(target=_run, args=(work, future, loop), name=name, daemon=True).start()
    except RuntimeError:
        raise _no_thread() from None
    return future


class KeptThreads:
    """Threads that wait for work: the start of one blocks the loop until it runs. None keeps the process from ending.

    Args:
        count: started at most, with the first calls of `start`.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name, self._started = count, name, 0
        self._jobs: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any], asyncio.AbstractEventLoop] | None]
        self._jobs = SimpleQueue()

    def start(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Begin `work` once a thread is free; the future is as that of `start_thread`. Raises ServiceError `overloaded`
        where the system gives not even one thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._started < self._count:
            try:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
                self._started += 1
            except RuntimeError:
                if not self._started:
                    raise _no_thread() from None
        self._jobs.put((work, future, loop))
        return future

    def close(self) -> None:
        """End the threads, each after its work."""
        started, self._started = self._started, 0  # or a late call would wait for ever
        for _ in range(started):
            self._jobs.put(None)

    def _work(self) -> None:
        while self._run_next():
            pass  # between two calls nothing here holds what was worked on

    def _run_next(self) -> bool:
        job = self._jobs.get()
        if job is None:
            return False
        _run(*job)
        del job  # an error's frames have this one among them
        return True


def _no_thread() -> ServiceError:
    return ServiceError("overloaded", "the system gives no thread for this", retry_after_seconds=1)


def _run(work: Callable[[], T], future: "asyncio.Future[T]", loop: asyncio.AbstractEventLoop) -> None:
    try:
        tell = partial(future.set_result, work())
    except BaseException as error:
        tell = partial(future.set_exception, error)
    del work, future  # an error has this frame among its own, in which it would hold itself and what was worked on
    while not loop.is_closed():
        with contextlib.suppress(MemoryError, RuntimeError):  # or whoever waits would wait for ever
            loop.call_soon_threadsafe(tell)
            break
        time.sleep(0.05)
    del tell
