"""What all connections of a port share: their limits, how many are open, and which of them makes room."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ...config.settings import Settings
from ...errors import ServiceError, error_body, error_headers
from ...telemetry.metrics import Metrics

# An upload that has brought a second's worth of its body goes after whoever is new within so many seconds.
STEADY_SECONDS = 2.0

# So many connections that have to go may still be told why; beyond that the first of them is cut off.
MOST_LEAVING = 32


class Counted(Protocol):
    """A connection, from its accept on."""

    def evict(self) -> None:
        """Make room for another one; it may take a moment to tell the client."""

    def abort(self) -> None:
        """Be gone at once."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may cost. Seconds and bytes."""

    max_headers: int
    max_header_bytes: int
    header_seconds: float
    body_seconds: float
    body_bytes_per_second: int

    @classmethod
    def of(cls, settings: Settings) -> "ConnectionLimits":
        """The limits that the settings say."""
        return cls(
            settings.max_headers,
            settings.max_header_bytes,
            settings.header_timeout_ms / 1e3,
            settings.body_timeout_ms / 1e3,
            settings.body_min_bytes_per_second,
        )


class ConnectionTable:
    """The books of one port; on its event loop.

    At the limit the connection that has owed us bytes for longest makes room, whatever they are: a handshake, a
    request, the rest of a body, the reading of an answer. One line for all of them, since with a line for each kind
    whoever fills the other one with slow clients would leave the honest ones to push each other out. Steady uploads
    stand apart and go last: an honest one would otherwise be lost to a flood of new connections. What makes one
    steady costs an attacker as many bytes a second for every connection.

    Args:
        most: that may be open at once; up to MOST_LEAVING more may be on their way out.
        clock: monotonic seconds.
    """

    def __init__(
        self, limits: ConnectionLimits, most: int, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self.most = most
        self.open = 0
        self._metrics = metrics
        self._clock = clock
        # Each in the order of its times: since when it has owed us bytes, and when it brought some last.
        self._waiting: dict[Counted, float] = {}
        self._steady: dict[Counted, float] = {}
        self._leaving: dict[Counted, None] = {}

    def opened(self, connection: Counted) -> bool:
        """A connection is there, and owes a request; False where there is no room and nobody who could make some."""
        self.open += 1
        if self.open - len(self._leaving) > self.most:
            first = self._first_to_go()
            self._leave(connection if first is None else first)
            if first is None:
                return False
            self.count_closed("evicted")
            first.evict()
        self.waits(connection)
        return True

    def closed(self, connection: Counted) -> None:
        """A connection has gone."""
        self.open -= 1
        self.served(connection)
        self._leaving.pop(connection, None)

    def waits(self, connection: Counted) -> None:
        """From now on it owes us bytes."""
        self.served(connection)
        if connection not in self._leaving:
            self._waiting[connection] = self._clock()

    def progressed(self, connection: Counted) -> None:
        """It owes us the rest of a body and has brought a second's worth of it."""
        self.served(connection)
        if connection not in self._leaving:
            self._steady[connection] = self._clock()

    def served(self, connection: Counted) -> None:
        """It owes us nothing: it waits for us."""
        self._waiting.pop(connection, None)
        self._steady.pop(connection, None)

    def _first_to_go(self) -> Counted | None:
        waiting = next(iter(self._waiting.items()), None)
        steady = next(iter(self._steady.items()), None)
        if waiting is None or steady is None:
            found = waiting or steady
            return None if found is None else found[0]
        return steady[0] if steady[1] + STEADY_SECONDS < waiting[1] else waiting[0]

    def _leave(self, connection: Counted) -> None:
        self.served(connection)
        self._leaving[connection] = None
        if len(self._leaving) > MOST_LEAVING:
            first = next(iter(self._leaving))
            del self._leaving[first]
            first.abort()

    def count_closed(self, reason: str) -> None:
        """One closed by us, see `metrics.CLOSE_REASONS`."""
        self._metrics.connections_closed[reason].inc()

    def count_refused(self, error: ServiceError) -> None:
        """One request refused before there was one."""
        self._metrics.rejected[error.code].inc()


def raw_answer(
    error: ServiceError, default_headers: list[tuple[bytes, bytes]], status_line: Callable[[int], bytes]
) -> bytes:
    """A whole HTTP/1.1 answer in the common shape, for a request that never became one; the connection closes."""
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
