"""Makes the rows of one shape and batch: every candidate is checked, and those that are right are timed in turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ....kernels.tuning.verify import relative_error
from ..child import one_line
from ..journal import Record
from .bench import Bench
from .timing import Timing

TOLERANCE = {torch.bfloat16: 6e-3, torch.float16: 2e-3, torch.float32: 1e-4}
"""Largest relative Frobenius error against float64 on the same rounded inputs that a row may have to be timed."""

Forward = Callable[[Tensor], Tensor]


class Work(NamedTuple):
    """What an algorithm cannot avoid: operations, and bytes to and from memory."""

    flops: float
    moved_bytes: float


@dataclass(frozen=True)
class Candidate:
    """Something to check and time: `forward` is a pure function of the input.

    Args:
        ours: it is milkweed's own way, not a peer.
        truth: the right answer; None for that of all candidates.
        eager: it is launched call by call, where all others are CUDA graphs.
        note: how it is made, for a person.
        impls: which impls it is made of.
    """

    name: str
    ours: bool
    forward: Forward
    work: Work
    note: str = ""
    impls: Sequence[str] = ()
    eager: bool = False
    truth: Forward | None = None


@dataclass(frozen=True)
class Subject:
    """What the candidates of some rows have in common.

    Args:
        section: `mlp`, `attention`, `forward`, `performer`, `branch`.
        what: the shape's name.
        make_input: returns a fresh random input.
        truth: computes the float64 answer.
    """

    section: str
    what: str
    batch: int
    make_input: Callable[[], Tensor]
    truth: Forward


def measure(
    subject: Subject,
    candidates: Sequence[Candidate],
    bench: Bench,
    *,
    skipped: Mapping[str, str] | None = None,
    tolerance: float | None = None,
) -> list[Record]:
    """Check every candidate on a fresh input, then time those that are right, interleaved.

    Args:
        skipped: candidates that were not built, and why: rows of their own.
        tolerance: relative error that a candidate may have; TOLERANCE of the input's dtype when None.

    Returns:
        A row for each. `us` is None where it did not run, and `note` says why. `floor_us` is the least time of its
        work. `passed` is whether the result was right, None where there was none.
    """
    x = subject.make_input()
    errors, why = _errors(candidates, x, subject.truth)
    limit = tolerance or TOLERANCE[x.dtype]
    right = {c.name: partial(c.forward, x) for c in candidates if errors.get(c.name, limit + 1) <= limit}
    timings = bench.timer(right, {c.name for c in candidates if c.eager})
    rows = []
    for candidate in candidates:
        error, timing = errors.get(candidate.name), timings.get(candidate.name)
        row = {**_row(subject, candidate.name, candidate.note), "ours": candidate.ours, "error": error}
        row["impls"] = list(candidate.impls)
        row |= {**candidate.work._asdict(), "floor_us": bench.ceilings.floor_us(candidate.work)}
        if isinstance(timing, Timing):
            row |= asdict(timing)
        elif error is not None and candidate.name not in right:
            row["note"] = f"wrong, not timed: relative error {error:.2e}"
        else:
            row["note"] = timing or why[candidate.name]
        rows.append({**row, "passed": None if error is None else candidate.name in right})
    return [*rows, *(_row(subject, name, reason) for name, reason in (skipped or {}).items())]


def _row(subject: Subject, name: str, note: str) -> Record:
    where = {"section": subject.section, "what": subject.what, "batch": subject.batch, "candidate": name}
    return {**where, "ours": False, "us": None, "error": None, "note": note, "passed": None}


def _errors(candidates: Sequence[Candidate], x: Tensor, truth: Forward) -> tuple[dict[str, float], dict[str, str]]:
    """Return the error of each candidate that ran, and why others did not."""
    answers: dict[Forward, Tensor] = {}
    errors: dict[str, float] = {}
    why: dict[str, str] = {}
    for candidate in candidates:
        right = candidate.truth or truth
        if right not in answers:
            answers[right] = right(x)
        try:
            errors[candidate.name] = relative_error(candidate.forward(x), answers[right])
        except Exception as error:  # said in the row; the others go on
            why[candidate.name] = one_line(error)
    return errors, why
