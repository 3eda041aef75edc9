"""One process of the benchmark: measures units of one section, and ends with the driver that began it."""

import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .journal import ABSENT, COMPLETE, ERROR, WRONG, Absent, Record, append, one_line, round_of
from .plan import Task

MODULES = {
    "device": ("library", "ceilings"),
    "smoke": ("smoke", "racecheck", "counters"),
    "rows": ("mlp", "attention", "cells"),
    "products": ("quantized",),
    "forward": ("forward", "levers", "numerics"),
    "served": ("served",),
    "images": ("images",),
}
"""Where each section's function is: it takes the task and a unit, and yields the unit's rows."""

END_SECONDS = 100.0
"""The time for a process to end after its last unit, which has a server to stop."""


def main(text: str) -> None:
    """Measure the units of the command line one after the other.

    A unit that takes longer than its limit ends the process. After an exception nothing more is measured here, since
    the device may no longer work; the driver goes on in another process.
    """
    threading.Thread(target=_end_with_driver, daemon=True).start()
    faulthandler.register(signal.SIGALRM, chain=True)  # the log has where it hung
    order = json.loads(text)
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in order["task"].items()}
    task = Task(**values)
    for unit in order["units"]:
        signal.setitimer(signal.ITIMER_REAL, order["seconds"])
        if attempt(task, unit) == ERROR:
            break
    signal.setitimer(signal.ITIMER_REAL, END_SECONDS)


def attempt(task: Task, unit: str) -> str:
    """Measure a unit: write each row as it comes, and its end; return the state.

    A row's `kind` may say that it is another record, and `"passed": False` is a failed check.
    """
    out, began, failed, state, why = Path(task.out), time.monotonic(), list[str](), COMPLETE, ""
    try:
        for row in rows_of(task, unit):
            append(out, {"kind": "row", "unit": unit, "round": round_of(unit), **row})
            if row.get("passed") is False:
                failed.append(str(row.get("note") or row["what"]))
        if failed:
            state, why = WRONG, f"{len(failed)} failed, the first: {failed[0]}"
    except (Absent, ImportError) as error:
        state, why = ABSENT, one_line(error).partition(": ")[2]
    except Exception as error:  # the other units must not miss their figures
        traceback.print_exc()
        state, why = ERROR, one_line(error)
    seconds = round(time.monotonic() - began, 2)
    append(out, {"kind": "end", "unit": unit, "state": state, "why": why, "seconds": seconds})
    return state


def rows_of(task: Task, unit: str) -> Iterator[Record]:
    """Yield the rows of a unit; a failed import is its end, since nothing is imported before it has begun."""
    section = unit.partition("/")[0]
    module = next(module for module, sections in MODULES.items() if section in sections)
    for row in getattr(importlib.import_module(f"{__package__}.{module}"), section)(task, unit):
        yield {"section": section, **row}


def _end_with_driver() -> None:
    """Wait until the driver's end of standard input closes; then end this process and all that it began."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
