"""The tuner's measurements, as rows to print and to keep."""

from collections.abc import Iterable
from dataclasses import dataclass

from .plan import Plan, Span


@dataclass(frozen=True)
class Row:
    """The outcome of one impl on one segment.

    Args:
        span: the segment's first operator and the one after its last.
        operators: kinds of its operators, `norm+monarch`.
        seconds: None if it was not measured.
        resident_bytes: size of the tensors that it keeps on the device.
        refused: why it was not measured: the impl refused, the launch failed, or the result was wrong; else None.
        discarded: it ran, and its result was wrong.
    """

    span: Span
    operators: str
    impl: str
    seconds: float | None = None
    resident_bytes: int = 0
    refused: str | None = None
    discarded: bool = False

    def __str__(self) -> str:
        what = self.refused if self.seconds is None else f"{self.seconds * 1e6:.1f} us, {self.resident_bytes} bytes"
        return f"{self.span[0]}:{self.span[1]} {self.operators:32} {self.impl:20} {what}"


@dataclass(frozen=True)
class Trial:
    """A plan timed end to end.

    Args:
        predicted_seconds: sum of its segments' times.
    """

    plan: Plan
    predicted_seconds: float
    seconds: float
    resident_bytes: int

    def __str__(self) -> str:
        times = f"{self.seconds * 1e6:.1f} us (sum of segments {self.predicted_seconds * 1e6:.1f})"
        return f"{times}, {self.resident_bytes} bytes: {self.plan}"


def report(rows: Iterable[Row], trials: Iterable[Trial]) -> str:
    """Return as text the rows that ran, fastest first in each segment, then the trials, then the refusals."""
    ran = sorted((row for row in rows if row.seconds is not None), key=lambda row: (row.span, row.seconds))
    refused = [row for row in rows if row.seconds is None]
    return "\n".join(map(str, [*ran, *trials, *refused]))
