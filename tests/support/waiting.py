"""Waiting for what another thread, task or process does: only a hang reaches the time limit."""

import asyncio
import time
from collections.abc import Callable

import psutil

HANG_SECONDS = 300.0
EVERY_SECONDS = 0.005  # with 0 a waiting loop would keep other threads from Python for 5 ms at a time


def eventually(condition: Callable[[], object], what: str = "what was waited for") -> None:
    """Wait until something holds."""
    end = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {HANG_SECONDS:g} s"
        time.sleep(EVERY_SECONDS)


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop run until something holds."""
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():
            await asyncio.sleep(EVERY_SECONDS)


def has_ended(pid: int) -> bool:
    """Whether a process, which need not be a child of this one, has ended; one that nobody has waited for has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
