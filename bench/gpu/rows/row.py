"""Makes the rows of one shape and batch: every candidate is checked, and those that are right are timed in turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....kernels.tuning.verify import relative_error
from .device import Ceilings
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
        section: `mlp`, `attention`, `forward`, `performer`, `branch`.
        what: the shape's name.
        candidate: what ran.
        ours: it is milkweed's own way, not a peer.
        us: warm, one input again and again; None where it did not run.
        cold_us: inputs rotate through more than the cache holds; None where they would all fit in it.
        floor_us: least time of this algorithm in as few launches as it can have (`Ceilings.floor_us`).
        error: relative error against float64.
        note: why it did not run, or which impls it is made of.
        flops, moved_bytes: of `Work`; 0 where nobody counted.
        passed: whether the result was right; None where there was none.
        sm_mhz, sm_mhz_least: of `Timing`.
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
    passed: bool | None = None
    sm_mhz: float | None = None
    sm_mhz_least: float | None = None

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
        truth: the right answer; None for that of all candidates.
        eager: it is launched call by call, where all others are CUDA graphs.
    """

    name: str
    ours: bool
    forward: Forward
    floor_us: float
    note: str = ""
    work: Work = UNKNOWN
    eager: bool = False
    truth: Forward | None = None


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
    notes = {candidate.name: candidate.note for candidate in candidates}
    errors = _errors(candidates, x, truth, notes)
    limit = tolerance or TOLERANCE[x.dtype]
    right = [candidate for candidate in candidates if errors.get(candidate.name, limit + 1) <= limit]
    for name, error in errors.items():
        if not error <= limit:
            notes[name] = f"wrong, not timed: relative error {error:.2e}"
    sets = input_sets(make_input, ceilings.cache_bytes)
    eager = {c.name for c in right if c.eager}
    warm = timer({c.name: [partial(c.forward, x)] for c in right}, eager)
    cold = timer({c.name: [partial(c.forward, one) for one in sets] for c in right}, eager) if sets else {}
    rows = []
    for candidate in candidates:
        name = candidate.name
        timing, cold_timing = warm.get(name), cold.get(name)
        row = Row(section, what, batch, name, candidate.ours, None, None, None, candidate.floor_us, errors.get(name))
        row = replace(row, note=notes[name], flops=candidate.work.flops, moved_bytes=candidate.work.moved_bytes)
        if isinstance(timing, Timing):
            row = replace(row, us=timing.us, iqr_us=timing.iqr_us)
            row = replace(row, sm_mhz=timing.sm_mhz, sm_mhz_least=timing.sm_mhz_least)
        elif timing is not None:
            row = replace(row, note=timing)
        cold_us = cold_timing.us if isinstance(cold_timing, Timing) else None
        rows.append(replace(row, cold_us=cold_us, passed=candidate in right if name in errors else None))
    for name, reason in (skipped or {}).items():
        rows.append(Row(section, what, batch, name, False, None, None, None, 0.0, None, reason))
    return rows


def _errors(candidates: Sequence[Candidate], x: Tensor, truth: Forward, notes: dict[str, str]) -> dict[str, float]:
    """Return the error of each candidate that ran; `notes` gets why another did not."""
    answers: dict[Forward, Tensor] = {}
    errors: dict[str, float] = {}
    for candidate in candidates:
        right = candidate.truth or truth
        if right not in answers:
            answers[right] = right(x)
        try:
            errors[candidate.name] = relative_error(candidate.forward(x), answers[right])
        except Exception as error:  # said in the row; the others go on
            notes[candidate.name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return errors
