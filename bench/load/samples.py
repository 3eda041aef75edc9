"""What a client saw of each request, in columns: small enough to keep for a million of them."""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

OK = "200"
TIMEOUT, RESET, REFUSED, GARBLED, NO_CONNECTION = "timeout", "reset", "refused", "garbled", "no_connection"
"""Ends of a request without an answer: not in time, connection lost, not opened, not HTTP, too many open."""

LOST = (RESET, REFUSED, GARBLED)


@dataclass
class Samples:
    """One entry a request in each column; seconds.

    Args:
        starts: intended start, from the beginning of the row; in a closed loop, when it was sent.
        latencies: from the intended start to the last byte of the answer, or to the end of waiting for it.
        lateness: from the intended start to when the client sent it.
        outcomes: index into `labels`.
        good: 1 where a good request was sent.
        labels: HTTP statuses, and the ends without an answer.
        bare_refusals: answers 429 and 503 without Retry-After.
        wrong: answers with 200 that hold an error, or another request's answer.
        moved: requests that were sent again to another server after a 503.
        stopped_after: seconds of sending, where the row was ended early.
        cpu_seconds: of the client process.
    """

    starts: "array[float]" = field(default_factory=lambda: array("d"))
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    lateness: "array[float]" = field(default_factory=lambda: array("d"))
    outcomes: "array[int]" = field(default_factory=lambda: array("H"))
    good: "array[int]" = field(default_factory=lambda: array("b"))
    labels: list[str] = field(default_factory=list)
    bare_refusals: int = 0
    wrong: int = 0
    moved: int = 0
    stopped_after: float | None = None
    cpu_seconds: float = 0.0

    def add(self, start: float, latency: float, lateness: float, outcome: str, good: bool) -> None:
        """Note one request."""
        if outcome not in self.labels:
            self.labels.append(outcome)
        self.starts.append(start)
        self.latencies.append(latency)
        self.lateness.append(lateness)
        self.outcomes.append(self.labels.index(outcome))
        self.good.append(good)

    def __len__(self) -> int:
        return len(self.starts)

    def counts(self, good: bool | None = None) -> Counter[str]:
        """Requests by outcome: of the good ones, the malformed ones, or all."""
        pairs = zip(self.outcomes, self.good, strict=True)
        return Counter(self.labels[outcome] for outcome, was in pairs if good is None or was == good)

    def latencies_of(self, outcome: str, good: bool = True) -> list[float]:
        """Latencies of the requests with an outcome, seconds, ascending."""
        if outcome not in self.labels:
            return []
        wanted = self.labels.index(outcome)
        columns = zip(self.latencies, self.outcomes, self.good, strict=True)
        return sorted(latency for latency, found, was in columns if found == wanted and was == good)


def merged(parts: Iterable[Samples]) -> Samples:
    """The samples of several client processes."""
    whole = Samples()
    for part in parts:
        columns = zip(part.starts, part.latencies, part.lateness, part.outcomes, part.good, strict=True)
        for start, latency, lateness, outcome, good in columns:
            whole.add(start, latency, lateness, part.labels[outcome], bool(good))
        whole.bare_refusals += part.bare_refusals
        whole.wrong += part.wrong
        whole.moved += part.moved
        whole.stopped_after = part.stopped_after
        whole.cpu_seconds += part.cpu_seconds
    return whole
