"""Verdict: what became of the alerts of one fault, as rows and as complaints."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .answers import Key
from .faults.catalogue import NOISE
from .faults.fault import Fault
from .observer import Course, Courses

HARMLESS = frozenset({"200", "no_connection"})
"""Ends of a request that no server is to blame for: answered, or not sent since too many were open."""


@dataclass(frozen=True)
class Verdict:
    """One trial.

    Args:
        courses: of all alerts since the fault was made.
        made, undone: when that began, monotonic seconds.
        undo_seconds: that the undoing took.
        for_seconds: that each alert is pending as it is shipped.
        factor: by which durations were shorter here.
        requests: by outcome: an HTTP status, or how a request ended without one.
    """

    fault: Fault
    courses: Courses
    made: float
    undone: float
    undo_seconds: float
    for_seconds: Mapping[Key, float]
    factor: float
    requests: Mapping[str, int]

    def rows(self) -> list[dict[str, Any]]:
        """One for each alert that the fault must bring about; seconds, None where it did not happen."""
        return [self._row(key) for key in (*self.fault.fires, *self.fault.inhibited)]

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        fired = sorted("/".join(key) for key, course in self.courses.items() if course.firing is not None)
        return {
            "fault": self.fault.name,
            "what": self.fault.what,
            "undone": self.fault.undone,
            "undo_seconds": round(self.undo_seconds, 1),
            "alerts": self.rows(),
            "fired": fired,
            "requests": dict(sorted(self.requests.items())),
            "complaints": self.complaints(),
        }

    def complaints(self) -> list[str]:
        """What is not as it should be, a sentence each."""
        return [*self._unheard(), *self._endless(), *self._uncalled(), *self._harmed()]

    def _row(self, key: Key) -> dict[str, Any]:
        course, shipped = self._course(key), self.for_seconds[key]
        return {
            "alert": key[0],
            "severity": key[1],
            "for_seconds": shipped,
            "for_seconds_here": round(shipped / self.factor, 3),
            "inhibited": course.inhibited,
            "seconds_until": {
                "pending": _after(self.made, course.pending),
                "firing": _after(self.made, course.firing),
                "received": _after(self.made, course.received),
                "told": _after(self.made, course.told),
            },
            "seconds_after_undo_began_until": {
                "resolved": _after(self.undone, course.resolved),
                "dropped": _after(self.undone, course.dropped),
                "told": _after(self.undone, course.told_end),
            },
        }

    def _course(self, key: Key) -> Course:
        return self.courses.get(key, Course())

    def _unheard(self) -> Iterator[str]:
        for key in self.fault.fires:
            if not heard(self._course(key)):
                yield f"{_spoken(key)} was not pending, fired, received and told: {self._course(key)}"
        for key in self.fault.inhibited:
            if not kept(self._course(key)):
                yield f"{_spoken(key)} did not fire, or was not kept back: {self._course(key)}"

    def _endless(self) -> Iterator[str]:
        for key in (*self.fault.fires, *self.fault.inhibited):
            if not ended(self._course(key), told=self.fault.tells_end and key in self.fault.fires):
                yield f"{_spoken(key)} did not end, or nobody was told: {self._course(key)}"

    def _uncalled(self) -> Iterator[str]:
        right = {*self.fault.fires, *self.fault.inhibited, *self.fault.may_fire, *NOISE}
        for key, course in self.courses.items():
            if course.firing is not None and key not in right:
                yield f"{_spoken(key)} fired: this fault should not bring it about"

    def _harmed(self) -> Iterator[str]:
        others = {outcome: count for outcome, count in self.requests.items() if outcome not in HARMLESS and count}
        if self.fault.unharmed and (others or not self.requests.get("200")):
            yield f"requests were to be answered all the same: {dict(self.requests)}"


def heard(course: Course) -> bool:
    """Whether an alert came all the way to whom it is for."""
    return None not in (course.pending, course.firing, course.received, course.told)


def kept(course: Course) -> bool:
    """Whether it fired and Alertmanager kept it to itself."""
    return None not in (course.firing, course.received) and course.inhibited and course.told is None


def ended(course: Course, *, told: bool) -> bool:
    """Whether it is over.

    Args:
        told: and who was told that it began was told that it ended.
    """
    return None not in (course.resolved, course.dropped) and (course.told_end is not None or not told)


def _after(begin: float, at: float | None) -> float | None:
    return None if at is None else round(at - begin, 1)


def _spoken(key: Key) -> str:
    return f"{key[0]} ({key[1]})"
