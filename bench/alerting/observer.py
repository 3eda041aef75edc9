"""Watches alerts: when each was pending, fired, reached Alertmanager and whom it tells, and ended."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from .answers import Alertmanager, Key, Prometheus, key_of

LOOK_SECONDS = 0.2


@dataclass
class Course:
    """When an alert came to each of its states, monotonic seconds; None: it has not. An end that does not last is none.

    Args:
        received: by Alertmanager, whatever becomes of it there.
        told: to whom its route names.
        inhibited: whether Alertmanager kept it to itself at any time, since another alert explains it.
        resolved, dropped, told_end: the same three of its end.
    """

    pending: float | None = None
    firing: float | None = None
    received: float | None = None
    told: float | None = None
    inhibited: bool = False
    resolved: float | None = None
    dropped: float | None = None
    told_end: float | None = None

    def see(self, state: str | None, held: str | None, now: float) -> None:
        """What Prometheus and Alertmanager say of it; None: nothing."""
        if state is not None and self.pending is None:
            self.pending = now
        if state == "firing":
            self.firing = now if self.firing is None else self.firing
            self.resolved = None
        elif self.firing is not None and self.resolved is None:
            self.resolved = now
        if held is not None:
            self.received = now if self.received is None else self.received
            self.inhibited |= held == "suppressed"
            self.dropped = None
        elif self.received is not None and self.dropped is None:
            self.dropped = now

    def hear(self, status: str, now: float) -> None:
        """A message of Alertmanager's: firing or resolved."""
        if status == "firing":
            self.told = now if self.told is None else self.told
            self.told_end = None
        elif self.told is not None:
            self.told_end = now


Courses = Mapping[Key, Course]


class Observer:
    """Looks five times a second, on a thread of its own; messages come to `hear` as they are sent."""

    def __init__(self) -> None:
        self._courses: dict[Key, Course] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._error: Exception | None = None

    @property
    def courses(self) -> dict[Key, Course]:
        """Of every alert since `begin`."""
        with self._changed:
            return dict(self._courses)

    @contextmanager
    def following(self, prometheus: Prometheus, alertmanager: Alertmanager) -> Iterator[None]:
        """Look at both until the end of the block."""
        thread = threading.Thread(
            target=self._follow, args=(prometheus, alertmanager), name="alert-observer", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def begin(self) -> float:
        """Forget what was; monotonic seconds of now."""
        with self._changed:
            self._courses.clear()
            return time.monotonic()

    def wait(self, done: Callable[[Courses], bool], seconds: float) -> bool:
        """Until the courses are as asked for; False where they did not become so in time.

        Raises:
            RuntimeError: Prometheus or Alertmanager no longer answers.
        """
        with self._changed:
            found = self._changed.wait_for(lambda: self._error is not None or done(self._courses), seconds)
            if self._error is not None:
                raise RuntimeError(f"alerts cannot be watched: {self._error}") from self._error
            return found

    def hear(self, body: bytes) -> str:
        """A message of Alertmanager's to a webhook; the answer is empty."""
        now, message = time.monotonic(), json.loads(body)
        with self._changed:
            for alert in message["alerts"]:
                self._course(key_of(alert["labels"])).hear(alert["status"], now)
            self._changed.notify_all()
        return ""

    def _follow(self, prometheus: Prometheus, alertmanager: Alertmanager) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                states, held = prometheus.alerts(), alertmanager.alerts()
            except (OSError, ValueError) as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            self._take(states, held)

    def _take(self, states: Mapping[Key, str], held: Mapping[Key, str]) -> None:
        now = time.monotonic()
        with self._changed:
            for key in {*states, *held, *self._courses}:
                self._course(key).see(states.get(key), held.get(key), now)
            self._changed.notify_all()

    def _course(self, key: Key) -> Course:
        return self._courses.setdefault(key, Course())
