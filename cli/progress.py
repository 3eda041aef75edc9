"""How far a long command is, on stderr: a bar with rate and time left on a terminal, else a few lines."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

LOG_SECONDS = 10.0
"""Between two lines where stderr is no terminal."""

Update = Callable[[int, int], None]
"""Called with units done and units in all."""


@contextmanager
def progress(what: str, unit: str) -> Iterator[Update]:
    """Show the progress of the block; it calls what it is given as it goes.

    Args:
        what: is being done, such as "evaluate".
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


class Steps:
    """The progress of work in several steps: a bar for each, one after the other."""

    def __init__(self, what: str) -> None:
        self._what, self._step = what, ""
        self._stack = ExitStack()

    def __enter__(self) -> "Steps":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Tell that `done` of `total` units of the named step are done."""
        if step != self._step:
            self._stack.close()
            self._step = step
            self._update = self._stack.enter_context(progress(f"{self._what}: {step}", "done"))
        self._update(done, total)


class _Rate:
    """Units a second since the first unit was asked for."""

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
        line = f"{self._what}: {done} of {total} {self._unit}, {rate:.1f} {self._unit}/s{left}"
        print(f"milkweed: {line}", file=sys.stderr, flush=True)
