"""ThreadPool: threads that a forked process has too."""

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadPool(Executor):
    """At most so many threads for each process: one that is forked has none of its parent's, and starts its own."""

    def __init__(self, max_workers: int, name: str) -> None:
        self._max_workers, self._name = max_workers, name
        self._of_process: dict[int, ThreadPoolExecutor] = {}

    def submit(self, run: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        """Call `run` on a thread."""
        return self._threads().submit(run, *args, **options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End this process's threads."""
        self._threads().shutdown(wait, cancel_futures=cancel_futures)

    def _threads(self) -> ThreadPoolExecutor:
        # No lock: a thread of the parent might hold it at the fork. An executor without work has no threads.
        pid = os.getpid()
        return self._of_process.get(pid) or self._of_process.setdefault(
            pid, ThreadPoolExecutor(self._max_workers, self._name)
        )
