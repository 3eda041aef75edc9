"""ThreadPool: threads that a forked process has too."""

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadPool(Executor):
    """At most so many threads for each process: one that is forked has none of its parent's, and starts its own."""

    def __init__(self, max_workers: int, name: str) -> None:
        self._make = partial(ThreadPoolExecutor, max_workers, name)
        self._of_process: dict[int, ThreadPoolExecutor] = {}

    def submit(self, run: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        return self._threads().submit(run, *args, **options)

    def shutdown(self, *args: Any, **options: Any) -> None:
        self._threads().shutdown(*args, **options)

    def _threads(self) -> ThreadPoolExecutor:  # without a lock, which a thread of the parent might hold at the fork
        return self._of_process.get(os.getpid()) or self._of_process.setdefault(os.getpid(), self._make())
