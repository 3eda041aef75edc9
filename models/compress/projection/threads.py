"""Runs LAPACK on one thread, since more cost more than they give on blocks this small."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
