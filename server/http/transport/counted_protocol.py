"""Enters uvicorn's HTTP connections into the table of connections, and ends those whose client does not read."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ...errors import ServiceError
from ...telemetry.context import DISCONNECT_KEY
from .connection_table import ConnectionTable, raw_answer
from .unread import Unread

REFUSAL_KEY = "milkweed.refusal"
"""Where a request's scope holds the ServiceError that says why the rest of its body will never come."""

# For so long a closing connection still takes what is sent to it: a reset would destroy the answer before the client
# has read it.
LINGER_SECONDS = 2.0


def _nothing() -> None:
    """Do nothing."""


class CountedProtocol(HttpToolsProtocol):
    """uvicorn's protocol for httptools, which can be evicted, and answers what is no request in our error format."""

    def __init__(self, table: ConnectionTable, on_made: Callable[[], None] = _nothing, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._table = table
        self._in_head = False
        self._ignoring_input = self._spare = False
        self._ahead_bytes = 0
        self._running: RequestResponseCycle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._on_made = on_made  # the handshake of TLS hears that it is over

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unread = Unread(self._table, self, transport)
        self._on_made()
        self._spare = not self._table.opened(self)  # it may ask for a probe
        # Before its first request a connection may be silent for as long as after any other.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.closed(self)
        self._count_ahead(-self._ahead_bytes)
        self._unread.end()
        self._ignore_input()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        # uvicorn tells the newest request alone; where others are behind it, the one that runs would never hear of it.
        for cycle in {self._running, self.cycle, *(cycle for cycle, _ in self.pipeline)}:
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
                cycle.scope[DISCONNECT_KEY].happen()  # type: ignore[literal-required]
        for cycle, _ in self.pipeline:
            cycle.on_response = _nothing  # as uvicorn does once one has run, for they keep each other
        self.pipeline.clear()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._unread.stop()
            self._update_table()

    def shutdown(self) -> None:
        """Called by uvicorn when the server ends."""
        super().shutdown()
        if self.transport.is_closing():
            self._unread.start()

    def on_response_complete(self) -> None:
        waiting, self.pipeline = self.pipeline, deque()  # uvicorn would begin with the next of them at once
        super().on_response_complete()
        self.pipeline = waiting
        if waiting:
            self._unset_keepalive_if_required()
            self._table.turns.add(self._start_next)
        else:
            self._count_ahead(-self._ahead_bytes)
        if self.transport.is_closing():
            self._unread.start()
        elif not self.flow.write_paused:
            self._update_table()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _start_next(self) -> None:
        if self.pipeline and not self.transport.is_closing():
            self._start_asgi_task(*self.pipeline.pop())

    def evict(self) -> None:
        """Make room for another connection; a client in the middle of a body is told, if its answer has not begun."""
        if self._unread.stalled or self.transport.is_closing():
            self.abort()
        elif self._owes_body and not self._ignoring_input and not self.cycle.response_started:
            self._fail_request(self._too_many("of this body nothing came for longest"))
        else:
            self._close()

    def abort(self) -> None:
        """Close at once, whatever is still to be sent."""
        if self._spare and not self._ignoring_input:
            self._table.count_closed("refused")
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    @property
    def _answering(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _owes_body(self) -> bool:
        """Whether the body of the request being answered is not there yet."""
        return self._answering and self.cycle.more_body and not self.pipeline

    @property
    def _behind(self) -> bool:
        """Whether what comes now is behind a request that is whole and has no answer yet."""
        return bool(self.pipeline) or (self._answering and not self.cycle.more_body)

    def _count_ahead(self, count: int) -> None:
        self._ahead_bytes += count
        self._table.ahead_bytes += count

    def _too_many(self, why: str) -> ServiceError:
        text = f"the limit of {self._table.max_connections} connections is reached, and {why}"
        return ServiceError("overloaded", text, retry_after_seconds=1)

    def _update_table(self) -> None:
        """Tell the table which side waits for the other now."""
        if self._answering and not self._owes_body:
            self._table.mark_busy(self)
        else:
            self._table.mark_waiting(self)

    def _fail_request(self, error: ServiceError) -> None:
        """Read no more while a request is being answered; where its own body is incomplete, it fails with the error."""
        self._ignore_input()
        self.cycle.keep_alive = False
        if self.cycle.more_body and not self._in_head:
            error.close = True
            self.scope[REFUSAL_KEY] = error  # type: ignore[literal-required]
            self.cycle.message_event.set()

    def _respond(self, error: ServiceError) -> None:
        """Answer in place of the app, and close once the client has had a chance to read it."""
        self.transport.write(raw_answer(error, self.server_state.default_headers, STATUS_LINE.__getitem__))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self._close)

    def _close(self) -> None:
        """Read nothing more, and close once the client has read what waits for it."""
        self._ignore_input()
        if not self.transport.is_closing():
            self.transport.close()
            self._unread.start()

    def _ignore_input(self) -> None:
        """Throw away what the client still sends."""
        self._ignoring_input = True
        if self._deadline is not None:
            self._deadline.cancel()
