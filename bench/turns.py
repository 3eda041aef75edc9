"""Calls that take turns, so that whatever else the machine does hits all of them alike."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

Name = TypeVar("Name")
Spent = list[tuple[float, float]]
"""Wall and CPU milliseconds of one call after the other; CPU time is that of all threads of the process."""


def in_turns(
    calls: Mapping[Name, Callable[[], object]],
    rounds: int,
    seconds: float = 0,
    *,
    warm_up: int = 2,
    most: int = 300,
    cpu_seconds: Callable[[], float] | None = None,
) -> dict[Name, Spent]:
    """Time the calls, each once a round, with another one first in each round.

    Args:
        rounds: that are measured at least; there are more until `seconds` are over, up to `most`.
        warm_up: calls of each before the clock runs.
        cpu_seconds: the clock of CPU time; None = that of this process.
    """
    clock = cpu_seconds or time.process_time
    spent: dict[Name, Spent] = {name: [] for name in calls}
    names, done = list(calls), 0
    for name in names * warm_up:
        calls[name]()
    end = time.perf_counter() + seconds
    while done < rounds or (done < most and time.perf_counter() < end):
        first = done % len(names)
        for name in names[first:] + names[:first]:
            cpu, wall = clock(), time.perf_counter()
            calls[name]()
            spent[name].append((1e3 * (time.perf_counter() - wall), 1e3 * (clock() - cpu)))
        done += 1
    return spent


def medians(spent: Sequence[tuple[float, float]], images: int = 1) -> tuple[float, float]:
    """The medians of wall and CPU milliseconds, of one of so many images, to a microsecond."""
    wall, cpu = (median(times) / images for times in zip(*spent, strict=True))
    return round(wall, 3), round(cpu, 3)
