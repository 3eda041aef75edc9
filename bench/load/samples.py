"""What clients saw of each request, in columns that hold millions of them, and what a row of load comes to."""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .plan import Plan

OK = "200"
TIMEOUT, RESET, REFUSED, GARBLED, NO_CONNECTION = "timeout", "reset", "refused", "garbled", "no_connection"
"""Ends of a request without an answer: not in time, connection lost, not opened, not HTTP, too many open."""

LOST = (RESET, REFUSED, GARBLED)
PERCENTILES = (50, 90, 95, 99, 99.9)

LATE_SHARE, LATE_LEAST_MS = 0.1, 1.0
"""A client is late when the p99 of its lateness is above this share of the p99 latency, and above this much."""


@dataclass
class Samples:
    """One entry a request in each of the first five; seconds.

    Args:
        starts: intended start, from the beginning of the row; in a closed loop, when it was sent.
        latencies: from the intended start to the last byte of the answer, or to the end of waiting for it.
        lateness: from the intended start to when the client sent it.
        outcomes: HTTP status, or how it ended without one; equal ones are the same object.
        good: whether a good request was sent.
        bare_refusals: answers 429 and 503 without Retry-After.
        wrong: answers with 200 that hold an error, or another request's answer.
        moved: requests that were sent again to another server after a 503.
        stopped_after: seconds of sending, where the row was ended early.
        cpu_seconds: of the client process.
    """

    starts: "array[float]" = field(default_factory=lambda: array("d"))
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    lateness: "array[float]" = field(default_factory=lambda: array("d"))
    outcomes: list[str] = field(default_factory=list)
    good: list[bool] = field(default_factory=list)
    bare_refusals: int = 0
    wrong: int = 0
    moved: int = 0
    stopped_after: float | None = None
    cpu_seconds: float = 0.0

    def add(self, start: float, latency: float, lateness: float, outcome: str, good: bool) -> None:
        """Note one request."""
        self.starts.append(start)
        self.latencies.append(latency)
        self.lateness.append(lateness)
        self.outcomes.append(outcome)
        self.good.append(good)

    def ended_after(self) -> float:
        """Seconds until the last request had its end."""
        return max(map(float.__add__, self.starts, self.latencies), default=0.0)

    def __len__(self) -> int:
        return len(self.starts)

    def requests(self, good: bool) -> Iterator[tuple[float, float, str]]:
        """Start, latency and outcome of each good request, or of each malformed one."""
        rows = zip(self.starts, self.latencies, self.outcomes, self.good, strict=True)
        return ((start, latency, outcome) for start, latency, outcome, was in rows if was == good)

    def counts(self, good: bool | None = None) -> Counter[str]:
        """Requests by outcome: of the good ones, the malformed ones, or all."""
        return Counter(out for out, was in zip(self.outcomes, self.good, strict=True) if good is None or was == good)

    def accepted(self) -> list[float]:
        """Latencies of the good requests that were answered with 200, seconds, ascending."""
        return sorted(latency for _, latency, outcome in self.requests(good=True) if outcome == OK)


def merged(parts: Iterable[Samples]) -> Samples:
    """The samples of several client processes."""
    whole = Samples()
    for part in parts:
        for column in ("starts", "latencies", "lateness", "outcomes", "good"):
            getattr(whole, column).extend(getattr(part, column))
        for count in ("bare_refusals", "wrong", "moved", "cpu_seconds"):
            setattr(whole, count, getattr(whole, count) + getattr(part, count))
        whole.stopped_after = part.stopped_after
    return whole


def percentile(ascending: Sequence[float], q: float) -> float:
    """Nearest rank: the least value that at least q percent of all do not exceed; one that occurred."""
    return ascending[max(0, math.ceil(len(ascending) * q / 100) - 1)]


def percentiles_ms(ascending_seconds: Sequence[float]) -> dict[str, float] | None:
    """p50 to p99.9 and the largest, ms; None of no values."""
    if not ascending_seconds:
        return None
    latencies = {f"p{q:g}": round(percentile(ascending_seconds, q) * 1e3, 2) for q in PERCENTILES}
    return {**latencies, "max": round(ascending_seconds[-1] * 1e3, 2)}


def summary(plan: Plan, samples: Samples) -> dict[str, Any]:
    """One row.

    Latencies are of good requests answered with 200, from their intended start. `goodput` counts those answered
    within the client's timeout, a second of sending (of a closed loop: answered before its end); `answered`
    everything that got a status. A closed loop of so many requests lasts until the last one's end.
    """
    good, malformed = samples.counts(good=True), samples.counts(good=False)
    ends = good + malformed
    seconds = samples.stopped_after or (samples.ended_after() if plan.requests else plan.seconds)
    latency = percentiles_ms(samples.accepted())
    late = percentiles_ms(sorted(samples.lateness)) if plan.rate else None
    return {
        "loop": "open" if plan.rate else "closed",
        "arrivals": plan.arrivals if plan.rate else None,
        "rate": round(plan.rate, 1) or None,
        "connections": plan.connections,
        "timeout_ms": round(plan.timeout_seconds * 1e3),
        "seconds": round(seconds, 2),
        "sent": len(samples),
        "answered": sum(count for outcome, count in ends.items() if outcome.isdigit()),
        "lost": sum(ends[word] for word in LOST),
        "statuses": dict(sorted(good.items())),
        "malformed_statuses": dict(sorted(malformed.items())),
        "good_sent": sum(good.values()),
        "good_failed": sum(good.values()) - good[OK],
        "wrong_answers": samples.wrong,
        "refusals_without_retry_after": samples.bare_refusals,
        "moved": samples.moved,
        "goodput": round(_in_time(plan, samples, seconds) / seconds, 1),
        "latency_ms": latency,
        "lateness_ms": late,
        "client_late": is_late(late, latency or {"p99": plan.timeout_seconds * 1e3}),
        "client_cpu_ms_per_request": round(samples.cpu_seconds / max(1, len(samples)) * 1e3, 3),
    }


def _in_time(plan: Plan, samples: Samples, seconds: float) -> int:
    until = math.inf if plan.rate else seconds
    return sum(
        outcome == OK and latency <= plan.timeout_seconds and start + latency <= until
        for start, latency, outcome in samples.requests(good=True)
    )


def is_late(lateness: dict[str, float] | None, latency: dict[str, float]) -> bool:
    """Whether the client itself made so much of the latencies that they are hardly the server's."""
    return lateness is not None and lateness["p99"] > max(LATE_LEAST_MS, LATE_SHARE * latency["p99"])


def timeline(samples: Samples, bin_seconds: float) -> list[dict[str, Any]]:
    """Good requests by when they were meant to start: their outcomes, and the p99 of those answered with 200."""
    bins: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for start, latency, outcome in samples.requests(good=True):
        bins[int(start / bin_seconds)][outcome].append(latency)
    return [
        {
            "at": round(number * bin_seconds, 3),
            "statuses": dict(sorted((outcome, len(latencies)) for outcome, latencies in bins[number].items())),
            "p99_ms": round(percentile(sorted(bins[number][OK]), 99) * 1e3, 2) if OK in bins[number] else None,
        }
        for number in range(max(bins, default=-1) + 1)
    ]


def curve(samples: Samples) -> list[tuple[float, float]]:
    """Percentile and latency in ms of good requests answered with 200: enough points for a plot."""
    accepted = samples.accepted()
    ranks = [*range(0, 90, 5), *(100 - 10 ** (1 - step / 6) for step in range(19))]
    return [(round(q, 4), round(percentile(accepted, q) * 1e3, 3)) for q in ranks] if accepted else []
