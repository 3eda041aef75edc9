"""What a server's processes cost: CPU time and memory of one and all it has started."""

from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True)
class Usage:
    """CPU seconds since their start, resident and proportional bytes, of so many processes."""

    cpu_seconds: float
    rss_bytes: int
    pss_bytes: int
    processes: int


def usage(pid: int, *, proportional: bool = True) -> Usage:
    """Of a process and its descendants; those that end while it looks do not count.

    Args:
        proportional: also the proportional set size, which takes the kernel milliseconds a process.
    """
    cpu, rss, pss, count = 0.0, 0, 0, 0
    for process in _family(pid):
        try:
            times: Any = process.cpu_times()
            rss += process.memory_info().rss
            pss += process.memory_full_info().pss if proportional else 0
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        cpu += times.user + times.system
        count += 1
    return Usage(cpu, rss, pss, count)


def _family(pid: int) -> list[Any]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
