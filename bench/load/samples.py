"""What a client saw of each request, in columns: small enough to keep for millions of them."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

OK = "200"
TIMEOUT, RESET, REFUSED, GARBLED, NO_CONNECTION = "timeout", "reset", "refused", "garbled", "no_connection"
ENDS = (TIMEOUT, RESET, REFUSED, GARBLED, NO_CONNECTION)
"""Ends of a request without an answer: not in time, connection lost, not opened, not HTTP, too many open."""

LOST = (RESET, REFUSED, GARBLED)
COLUMNS = ("starts", "latencies", "lateness", "outcomes", "good")


@dataclass
class Samples:
    """One entry a request in each of COLUMNS; seconds.

    Args:
        starts: intended start, from the beginning of the row; in a closed loop, when it was sent.
        latencies: from the intended start to the last byte of the answer, or to the end of waiting for it.
        lateness: from the intended start to when the client sent it.
        outcomes: HTTP status, or index into ENDS.
        good: 1 where a good request was sent.
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
        self.outcomes.append(int(outcome) if outcome.isdigit() else ENDS.index(outcome))
        self.good.append(good)

    def __len__(self) -> int:
        return len(self.starts)

    def requests(self, good: bool) -> Iterator[tuple[float, float, str]]:
        """Start, latency and outcome of each good request, or of each malformed one."""
        for start, latency, outcome, was in zip(self.starts, self.latencies, self.outcomes, self.good, strict=True):
            if was == good:
                yield start, latency, ENDS[outcome] if outcome < len(ENDS) else str(outcome)

    def counts(self, good: bool | None = None) -> Counter[str]:
        """Requests by outcome: of the good ones, the malformed ones, or all."""
        kinds = (True, False) if good is None else (good,)
        return Counter(outcome for kind in kinds for _, _, outcome in self.requests(kind))

    def latencies_of(self, outcome: str) -> list[float]:
        """Latencies of the good requests with an outcome, seconds, ascending."""
        return sorted(latency for _, latency, found in self.requests(good=True) if found == outcome)


def merged(parts: Iterable[Samples]) -> Samples:
    """The samples of several client processes."""
    whole = Samples()
    for part in parts:
        for column in COLUMNS:
            getattr(whole, column).extend(getattr(part, column))
        whole.bare_refusals += part.bare_refusals
        whole.wrong += part.wrong
        whole.moved += part.moved
        whole.stopped_after = part.stopped_after
        whole.cpu_seconds += part.cpu_seconds
    return whole
