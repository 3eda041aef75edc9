"""Shows on stderr how far a long command is: a bar with rate and time left on a terminal, else a few lines."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from .errors import one_line
from .output import note

if TYPE_CHECKING:
    from ..jobs.progress import Progress

LOG_SECONDS = 10.0
"""The time between two lines where stderr is no terminal."""

Update = Callable[[int, int], None]
"""Takes the units done and the units in all."""


@contextmanager
def progress(what: str, unit: str) -> Iterator[Update]:
    """Show how far the block is; the block calls what it is given.

    Args:
        what: the name of the work, such as "evaluate".
        unit: what is counted, such as "images".
    """
    if not sys.stderr.isatty():
        yield _LogLines(what, unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task, rate = bars.add_task(what, total=None, rate=""), _Rate()
        yield lambda done, total: bars.update(task, completed=done, total=total, rate=f"{rate(done):.1f} {unit}/s")


@contextmanager
def job_progress(
    prefix: str = "", *, units: Mapping[str, str] | None = None, row: Callable[[Mapping[str, Any]], str] = str
) -> Iterator["Progress"]:
    """Show how far a job is: a bar for each step, one after the other, and its notes as lines.

    Args:
        prefix: stands before the name of each step.
        units: what each step counts, by its name; "done" where it is not there.
        row: describes a row of a training's history for a person.
    """
    from ..jobs.progress import Progress

    with ExitStack() as bar:
        shown: dict[str, Update] = {}

        def step(name: str, done: int, total: int) -> None:
            if name not in shown:
                bar.close()  # a terminal shows one bar at a time
                shown.clear()
                shown[name] = bar.enter_context(progress(prefix + name, (units or {}).get(name, "done")))
            shown[name](done, total)

        yield Progress(step, lambda found: note(row(found)), lambda text: note(one_line(text)))


class _Rate:
    """Units a second since the bar was made."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, done: int) -> float:
        return done / max(1e-9, time.monotonic() - self._started)


class _LogLines:
    """Progress as plain lines, at most one every LOG_SECONDS; short work says nothing."""

    def __init__(self, what: str, unit: str) -> None:
        self._what, self._unit, self._rate = what, unit, _Rate()
        self._next = time.monotonic() + LOG_SECONDS

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOG_SECONDS
        rate = self._rate(done)
        left = f", {(total - done) / rate:.0f} s left" if done else ""
        note(f"{self._what}: {done} of {total} {self._unit}, {rate:.1f} {self._unit}/s{left}")
