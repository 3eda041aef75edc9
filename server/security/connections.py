"""What all connections share: their limits, how many are open, and which of them owe us a request."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..errors import ServiceError, error_body, error_headers
from ..metrics import Metrics
from ..settings import Settings


class Waiting(Protocol):
    """A connection that may be closed to make room, because no request of it is being answered."""

    def evict(self) -> None: ...


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


class Connections:
    """The books of one server; on its event loop.

    At the limit the connection that has owed a request for longest makes room: with slow or silent clients one
    can take up connections, but not keep others out.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.limits = ConnectionLimits.of(settings)
        self._most = settings.max_connections
        self._metrics = metrics
        self._waiting: dict[Waiting, None] = {}  # in the order in which they began to wait
        self.open = 0
        metrics.connections.set_function(lambda: self.open)

    def opened(self, connection: Waiting) -> bool:
        """A connection is there; False where there is no room and nobody who could make some."""
        self.open += 1
        if self.open > self._most:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                self.count_closed("refused")
                return False
            del self._waiting[oldest]
            self.count_closed("evicted")
            oldest.evict()
        self._waiting[connection] = None
        return True

    def closed(self, connection: Waiting) -> None:
        """A connection has gone."""
        self.open -= 1
        self._waiting.pop(connection, None)

    def asked(self, connection: Waiting) -> None:
        """A request of it has arrived: it waits for us now."""
        self._waiting.pop(connection, None)

    def answered(self, connection: Waiting) -> None:
        """All its requests are answered: we wait for it again."""
        self._waiting[connection] = None

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
