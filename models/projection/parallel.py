"""Runs LAPACK on one thread, and many layers at once, since blocks this small gain nothing from more threads."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

import torch

from ..progress import Count, ignore

T = TypeVar("T")


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch computes on one thread.

    16 blocks of 768x192 take 0.24 s so; on two threads, where another process needs the second core, 12 s.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def each_on_one_thread(work: Callable[[str], T], names: Sequence[str], *, progress: Count = ignore) -> list[T]:
    """The results of `work(name)` for every name, in order; as many run at once as the process may use cores.

    Layers are independent, so cores are better spent on layers than on threads within one: no barrier, and no
    thread that waits for another one's turn on a busy machine.
    """
    threads = torch.get_num_threads()
    workers = max(1, min(len(names), len(os.sched_getaffinity(0)), threads))
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            futures = [pool.submit(work, name) for name in names]
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                progress(done, len(futures))
            return [future.result() for future in futures]
    finally:
        torch.set_num_threads(threads)
