"""Counts the connections of one or several ports, and chooses which one is evicted when there are too many."""

import random
import time
from collections.abc import Callable
from typing import Protocol

from ...config.settings import Settings
from ...errors import ServiceError, error_body, error_headers
from ...telemetry.metrics import Metrics
from .turns import Turns

# An upload that has brought a second's worth of its body is evicted after connections that came within so many seconds.
STEADY_SECONDS = 2.0

# Beyond the limit there may be so many connections that were evicted and are sent the reason, or that found no room and
# may ask for a probe, or hear the reason; beyond that the first of them is cut off.
MOST_LEAVING = 32

# What has been read ahead of answers may take as much memory as this part of what bodies may take.
AHEAD_PART = 4


class Evictable(Protocol):
    """A connection, or the TLS handshake before one."""

    def evict(self) -> None:
        """Make room for another connection; telling the client may take a moment."""

    def abort(self) -> None:
        """Close at once."""


class ConnectionTable:
    """The open connections of one port, or of several together. Belongs to the event loop.

    A connection is waiting while its client owes us something: a handshake, a request, the rest of a body, the reading
    of an answer. At the limit the one that has been waiting for longest is evicted. There is one order for all kinds:
    with one for each, an attacker who fills one kind with slow clients would make the honest ones evict each other.
    Steady uploads are in an order of their own and go last, or a flood of new connections would evict honest uploads;
    to be steady costs an attacker as many bytes a second for every connection.

    Args:
        max_connections: open at once; up to MOST_LEAVING more may be on their way out.
        clock: monotonic seconds.
    """

    def __init__(
        self, settings: Settings, max_connections: int, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self.max_connections = max_connections
        self.open = 0
        self.ahead_bytes = 0  # read, while the answer before them is not there yet
        self.turns = Turns()  # of what is neither a new connection nor its first request
        self.max_ahead_bytes = settings.max_held_bytes // AHEAD_PART
        self._metrics = metrics
        self._clock = clock
        # Both in the order of their times: since when a client has owed us something, and when it sent bytes last.
        self._waiting: dict[Evictable, float] = {}
        self._steady: dict[Evictable, float] = {}
        self._leaving: dict[Evictable, None] = {}

    def opened(self, connection: Evictable) -> bool:
        """Count a new connection, which owes a request; False where it finds no room and nobody can be evicted."""
        self.open += 1
        if self.open - len(self._leaving) > self.max_connections:
            first = self._first_to_go()
            self._leave(connection if first is None else first)
            if first is None:
                return False
            self.count_closed("evicted")
            first.evict()
        self.mark_waiting(connection)
        return True

    def closed(self, connection: Evictable) -> None:
        """A connection is gone."""
        self.open -= 1
        self.mark_busy(connection)
        self._leaving.pop(connection, None)

    def mark_waiting(self, connection: Evictable) -> None:
        """Its client owes us something from now on."""
        self.mark_busy(connection)
        if connection not in self._leaving:
            self._waiting[connection] = self._clock()

    def mark_steady(self, connection: Evictable) -> None:
        """Its client owes us the rest of a body, and has sent another second's worth of it."""
        self.mark_busy(connection)
        if connection not in self._leaving:
            self._steady[connection] = self._clock()

    def mark_busy(self, connection: Evictable) -> None:
        """Its client owes us nothing, but waits for our answer."""
        self._waiting.pop(connection, None)
        self._steady.pop(connection, None)

    def _first_to_go(self) -> Evictable | None:
        waiting = next(iter(self._waiting.items()), None)
        steady = next(iter(self._steady.items()), None)
        if waiting is None or steady is None:
            first = waiting or steady
            return None if first is None else first[0]
        return steady[0] if steady[1] + STEADY_SECONDS < waiting[1] else waiting[0]

    def _leave(self, connection: Evictable) -> None:
        self.mark_busy(connection)
        self._leaving[connection] = None
        if len(self._leaving) > MOST_LEAVING:
            first = next(iter(self._leaving))
            del self._leaving[first]
            first.abort()

    def count_closed(self, reason: str) -> None:
        """Count a connection that we close; the reason is one of `metrics.CLOSE_REASONS`."""
        self._metrics.connections_closed[reason].inc()

    def count_refused(self, error: ServiceError) -> None:
        """Count a request that was refused before the app saw it."""
        self._metrics.rejected[error.code].inc()


def raw_answer(
    error: ServiceError, default_headers: list[tuple[bytes, bytes]], status_line: Callable[[int], bytes]
) -> bytes:
    """An HTTP/1.1 error answer for what is no valid request; the connection closes after it."""
    request_id = b"%032x" % random.getrandbits(128)
    body = error_body(error.code, error.message, request_id.decode())
    error.close = True
    headers = [
        *default_headers,
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id),
        (b"x-content-type-options", b"nosniff"),
        *error_headers(error),
    ]
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return status_line(error.status) + lines + b"\r\n" + body
