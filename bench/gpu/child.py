"""One process of the benchmark: measures units of one section, and ends with the driver that began it."""

import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from .journal import Journal, Record, attempt
from .plan import Task

MODULES = {
    "device": ("library", "ceilings"),
    "smoke": ("smoke", "precompile"),
    "rows": ("mlp", "attention", "cells"),
    "forward": ("forward", "numerics"),
    "served": ("served",),
    "tools": ("counters", "racecheck", "tests"),
    "images": ("images",),
}
"""Where each section's function is: it takes the task and a unit, and returns the unit's rows."""


def main(text: str) -> None:
    """Do the task of the command line."""
    threading.Thread(target=_end_with_driver, daemon=True).start()
    run(Task(**json.loads(text)))


def run(task: Task) -> None:
    """Measure the units one after the other, while there is time for one more."""
    until = time.monotonic() + task.seconds
    for unit in task.units:
        if time.monotonic() + task.unit_seconds > until:
            return
        attempt(Journal(Path(task.out)), unit, task.unit_limit, _rows(task, unit))


def _rows(task: Task, unit: str) -> Iterator[Record]:
    """Yield the rows of a unit; a failed import is its end, since nothing is imported before it has begun."""
    section = unit.partition("/")[0]
    module = next(module for module, sections in MODULES.items() if section in sections)
    rows: Iterable[Record] = getattr(importlib.import_module(f"{__package__}.{module}"), section)(task, unit)
    for row in rows:
        yield {"section": section, **row}


def _end_with_driver() -> None:
    """Wait until the driver's end of standard input closes; then end this process and all that it began."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
