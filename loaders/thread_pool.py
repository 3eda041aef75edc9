"""ThreadPool: threads that all loaders or models of a process share, and that a forked process has too."""

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

MOST_THREADS = 1024


class ThreadPool(Executor):
    """Starts a thread only where all others are at work; whoever submits work bounds how many there are. A process that
    is forked has none of its parent's threads and starts its own."""

    def __init__(self, name: str) -> None:
        self._make = partial(ThreadPoolExecutor, MOST_THREADS, name)
        self._of_process: dict[int, ThreadPoolExecutor] = {}

    def submit(self, run: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        return self._threads().submit(run, *args, **options)

    def _threads(self) -> ThreadPoolExecutor:  # without a lock, which a thread of the parent might hold at the fork
        return self._of_process.get(os.getpid()) or self._of_process.setdefault(os.getpid(), self._make())
