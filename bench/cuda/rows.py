"""What a benchmark of the GPU consists of: one row a candidate, checked before it is timed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...kernels.tuning.verify import relative_error
from .ceilings import Ceilings
from .timing import Timer, Timing, input_sets

TOLERANCE = {torch.bfloat16: 6e-3, torch.float16: 2e-3, torch.float32: 1e-4}
"""Largest relative Frobenius error against float64 on the same rounded inputs that a row may have to be timed."""

Forward = Callable[[Tensor], Tensor]


class Work(NamedTuple):
    """What an algorithm cannot avoid: operations, and bytes to and from memory."""

    flops: float
    moved_bytes: float


UNKNOWN = Work(0.0, 0.0)


@dataclass(frozen=True)
class Row:
    """One candidate at one shape and batch.

    Args:
        section: `mlp`, `attention`, `performer`, `branch`, `model`.
        what: the shape's name.
        candidate: what ran.
        ours: it is milkweed's own way, not a peer.
        us: warm, one input again and again; None where it did not run.
        cold_us: inputs rotate through more than the cache holds; None where they would all fit in it.
        floor_us: least time of this algorithm in as few launches as it can have (`Ceilings.floor_us`).
        error: relative error against float64.
        note: why it did not run, or which impls it is made of.
        flops, moved_bytes: of `Work`; 0 where nobody counted.
    """

    section: str
    what: str
    batch: int
    candidate: str
    ours: bool
    us: float | None
    iqr_us: float | None
    cold_us: float | None
    floor_us: float
    error: float | None
    note: str = ""
    flops: float = 0.0
    moved_bytes: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain data; infinities, which JSON has none of, become text."""
        data = asdict(self)
        if data["error"] is not None and data["error"] == float("inf"):
            data["error"] = "not finite"
        return data


@dataclass(frozen=True)
class Candidate:
    """Something to check and time: `forward` is a pure function of the input.

    Args:
        eager: it is launched call by call, where all others are CUDA graphs.
    """

    name: str
    ours: bool
    forward: Forward
    floor_us: float
    note: str = ""
    work: Work = UNKNOWN
    eager: bool = False


def measure(
    section: str,
    what: str,
    batch: int,
    candidates: Sequence[Candidate],
    make_input: Callable[[], Tensor],
    truth: Callable[[Tensor], Tensor],
    *,
    timer: Timer,
    ceilings: Ceilings,
    skipped: Mapping[str, str] | None = None,
    tolerance: float | None = None,
) -> list[Row]:
    """Check every candidate on a fresh input, then time those that are right, interleaved, warm and cold.

    Args:
        make_input: a fresh random input.
        truth: the float64 answer.
        skipped: candidates that were not built, and why: rows of their own.
        tolerance: relative error that a candidate may have; TOLERANCE of the input's dtype when None.
    """
    x = make_input()
    expected = truth(x)
    errors: dict[str, float] = {}
    notes = {candidate.name: candidate.note for candidate in candidates}
    right: list[Candidate] = []
    for candidate in candidates:
        try:
            errors[candidate.name] = relative_error(candidate.forward(x), expected)
        except Exception as error:  # said in the row; the others go on
            notes[candidate.name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        if errors[candidate.name] <= (tolerance or TOLERANCE[x.dtype]):
            right.append(candidate)
        else:
            notes[candidate.name] = f"wrong, not timed: relative error {errors[candidate.name]:.2e}"
    del expected
    sets = input_sets(make_input, ceilings.cache_bytes)
    eager = {c.name for c in right if c.eager}
    warm = timer({c.name: [_call(c.forward, x)] for c in right}, eager)
    cold = timer({c.name: [_call(c.forward, one) for one in sets] for c in right}, eager) if sets else {}
    rows = []
    for candidate in candidates:
        name = candidate.name
        timing, cold_timing = warm.get(name), cold.get(name)
        measured = isinstance(timing, Timing)
        rows.append(
            Row(
                section,
                what,
                batch,
                name,
                candidate.ours,
                timing.us if isinstance(timing, Timing) else None,
                timing.iqr_us if isinstance(timing, Timing) else None,
                cold_timing.us if isinstance(cold_timing, Timing) else None,
                candidate.floor_us,
                errors.get(name),
                notes[name] if measured or timing is None else str(timing),
                *candidate.work,
            )
        )
    for name, reason in (skipped or {}).items():
        rows.append(Row(section, what, batch, name, False, None, None, None, 0.0, None, reason))
    return rows


def _call(forward: Forward, x: Tensor) -> Callable[[], Tensor]:
    return lambda: forward(x)


def best(rows: Sequence[Row], *, ours: bool) -> Row | None:
    """The fastest warm row of one side; None where none ran."""
    timed = [row for row in rows if row.us is not None and row.ours == ours]
    return min(timed, key=lambda row: row.us or 0.0) if timed else None
