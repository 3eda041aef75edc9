"""Shows on stderr how far a long command is: a bar with rate and time left on a terminal, else a few lines."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from .errors import one_line
from .output import note

if TYPE_CHECKING:
    from ..models.progress import Progress

LOG_SECONDS = 10.0
"""The time between two lines where stderr is no terminal."""

Update = Callable[[int, int], None]
"""Takes the units done and the units in all."""


@contextmanager
def progress(what: str, unit: str, *, is_whole: bool = True) -> Iterator[Update]:
    """Show how far the block is; the block calls what it is given.

    Args:
        what: the name of the work, such as "evaluate".
        unit: what is counted, such as "images".
        is_whole: whether the time that is left of it is the command's; else none is shown.
    """
    if not sys.stderr.isatty():
        yield _log_lines(what, unit, is_whole)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        *([TimeRemainingColumn()] if is_whole else []),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task, rate_of = bars.add_task(what, total=None, rate=""), _rate_meter()

        def update(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total, rate=f"{rate_of(done):.1f} {unit}/s")

        yield update


@contextmanager
def job_progress(
    prefix: str = "",
    *,
    units: Mapping[str, str] | None = None,
    row: Callable[[Mapping[str, Any]], str] = str,
    resumes: bool = False,
    is_search: bool = False,
) -> Iterator["Progress"]:
    """Show how far a job is: a bar for each step, one after the other, and its notes as lines.

    Args:
        prefix: stands before the name of each step.
        units: what each step counts, by its name; "done" where it is not there.
        row: describes a row of a training's history for a person.
        resumes: the same command goes on after Ctrl-C, which is said then.
        is_search: the job's notes tell the time that is left of all steps; no step tells its own.
    """
    from ..models.progress import Progress

    with _interrupted(resumes), ExitStack() as bar:
        shown: dict[str, Update] = {}

        def step(name: str, done: int, total: int) -> None:
            if name not in shown:
                bar.close()  # a terminal shows one bar at a time
                shown.clear()
                unit = (units or {}).get(name, "done")
                shown[name] = bar.enter_context(progress(prefix + name, unit, is_whole=not is_search))
            shown[name](done, total)
            if done >= total:  # notes that follow are not drawn over
                bar.close()
                shown.clear()

        yield Progress(step, lambda figures: note(row(figures)), lambda text: note(one_line(text)))


@contextmanager
def _interrupted(resumes: bool) -> Iterator[None]:
    """Say after Ctrl-C what becomes of the work."""
    try:
        yield
    except KeyboardInterrupt:
        if resumes:
            note("interrupted: the same command goes on from here")
        raise


def epoch_line(row: Mapping[str, Any]) -> str:
    """Describe a row of a training's history for a person."""
    figures = [f"loss {row['loss']:.4f}"] if "loss" in row else []
    figures += [f"KL {row['kl']:.4f}, {row['agreement']:.1f} % agree"] if "kl" in row else []
    return f"{row.get('phase', 'distillation')}: epoch {row['epoch']}, {', '.join(figures)}"


def _log_lines(what: str, unit: str, is_whole: bool = True) -> Update:
    """Print progress as plain lines, at most one every LOG_SECONDS; short work prints nothing."""
    written, rate_of = time.monotonic(), _rate_meter()

    def update(done: int, total: int) -> None:
        nonlocal written
        rate, now = rate_of(done), time.monotonic()
        if now < written + LOG_SECONDS:
            return
        written = now
        left = f", {(total - done) / rate:.0f} s left" if rate and is_whole else ""
        note(f"{what}: {done} of {total} {unit}{f', {rate:.1f} {unit}/s' if rate else ''}{left}")

    return update


def _rate_meter() -> Callable[[int], float]:
    """Return what tells the units a second since its first call, which may be of resumed work; 0 when not known."""
    first: list[tuple[int, float]] = []

    def rate_of(done: int) -> float:
        first[:] = first or [(done, time.monotonic())]
        return (done - first[0][0]) / max(1e-9, time.monotonic() - first[0][1])

    return rate_of
