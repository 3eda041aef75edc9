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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from .journal import ABSENT, COMPLETE, ERROR, WRONG, Absent, Journal, Writer

SECTIONS = {
    "library": "prepare:library",
    "precompile": "prepare:precompile",
    "smoke": "smoke:smoke",
    "ceilings": "rows.device:ceilings",
    "mlp": "rows.bench:timed",
    "attention": "rows.bench:timed",
    "forward": "rows.bench:timed",
    "cells": "rows.bench:timed",
    "counters": "tools:counters",
    "racecheck": "tools:sanitizer",
    "tests": "tools:tests",
    "served": "served:served",
    "numerics": "numerics:numerics",
    "images": "child:images",
}
"""A function for each section: it takes the task and a writer, and returns what measures one unit."""


@dataclass(frozen=True)
class Task:
    """What a process is to do.

    Args:
        out: the journal.
        seconds: after these, no further unit is begun.
        unit_seconds, unit_limit: of a `Step`.
        photos: a folder of JPEGs for the sections `served`, `numerics` and `images`.
        bad: a folder of bad files for `images`.
        bundles: trained models for `numerics`.
    """

    section: str
    units: tuple[str, ...]
    out: str
    seconds: float
    unit_seconds: float = 1.0
    unit_limit: float = 60.0
    dtype: str = "bfloat16"
    nblocks: int = 4
    dry: bool = False
    photos: str | None = None
    bad: str | None = None
    bundles: tuple[str, ...] = ()

    def as_json(self) -> str:
        """Return what `task_of` reads."""
        return json.dumps(asdict(self))


BROKEN = 4
"""Exit status of a process whose device no longer works: its failed unit has its end, and another process goes on."""

Measure = Callable[[str], None]
Section = Callable[[Task, Writer], Measure]


def task_of(text: str) -> Task:
    """Read what `Task.as_json` wrote."""
    found = json.loads(text)
    return Task(**{**found, **{name: tuple(found[name]) for name in ("units", "bundles")}})


def main(text: str) -> None:
    """Do the task of the command line."""
    threading.Thread(target=_end_with_driver, daemon=True).start()
    run(task_of(text))


def run(task: Task) -> None:
    """Measure the units one after the other, while there is time for one more."""
    until = time.monotonic() + task.seconds
    writer = Writer(Journal(Path(task.out)), task.section)
    measure: list[Measure] = []
    for unit in task.units:
        if time.monotonic() + task.unit_seconds > until:
            return

        def measured(unit: str = unit) -> None:
            if not measure:  # inside the first unit, so that a failed import is that unit's end
                measure.append(_section(task.section)(task, writer))
            measure[0](unit)

        attempt(writer, unit, task.unit_limit, measured)


def attempt(writer: Writer, unit: str, limit: float, measure: Callable[[], None]) -> str:
    """Measure a unit and write its begin and end; return its state.

    Args:
        limit: after so many seconds the process ends; its driver writes the unit's end.

    Raises:
        SystemExit: the device no longer works, so nothing more can be measured by this process.
    """
    writer.journal.begin(unit, limit)
    began, failed_before = time.monotonic(), len(writer.failed)
    faulthandler.dump_traceback_later(limit, exit=True)
    state, why = COMPLETE, ""
    try:
        measure()
    except (Absent, ImportError) as error:
        state, why = ABSENT, one_line(error).partition(": ")[2]
    except Exception as error:  # the other units must not miss their figures
        traceback.print_exc()
        state, why = ERROR, one_line(error)
    finally:
        faulthandler.cancel_dump_traceback_later()
    failed = writer.failed[failed_before:]
    del writer.failed[failed_before:]  # they are this unit's, not also the one's that it is a part of
    if state == COMPLETE and failed:
        state, why = WRONG, f"{len(failed)} failed, the first: {failed[0]}"
    writer.journal.end(unit, state, why, seconds=round(time.monotonic() - began, 2))
    if state == ERROR and _device_is_broken():
        raise SystemExit(BROKEN)
    return state


def images(task: Task, writer: Writer) -> Measure:
    """Return what measures decoding on the GPU."""
    found = importlib.import_module(f"{__package__}.images")
    photos, bad = (Path(folder) if folder else None for folder in (task.photos, task.bad))

    def measure(unit: str) -> None:
        found.image_rows(lambda row: writer({**row, "kind": "row", "unit": unit}), photos, bad, task.dry)

    return measure


def _section(name: str) -> Section:
    module, _, function = SECTIONS[name].partition(":")
    section: Section = getattr(importlib.import_module(f"{__package__}.{module}"), function)
    return section


def one_line(error: Exception) -> str:
    """Return an error's type and first line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def _device_is_broken() -> bool:
    """Whether an earlier call, such as an illegal access, has made the CUDA context useless."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _end_with_driver() -> None:
    """Wait until the driver's end of standard input closes; then end this process and all that it began."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
