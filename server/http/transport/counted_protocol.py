"""A connection in the books: it makes room for another one when told to, and ends where its client does not read."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ...errors import ServiceError
from ..disconnect import DISCONNECT_KEY
from .connection_table import ConnectionTable, raw_answer
from .unread import Unread

REFUSAL_KEY = "milkweed.refusal"
"""Where a request's scope says why the rest of its body will never come; a ServiceError."""

# For so long a closing connection still takes what is sent to it: a reset would destroy the answer in the client's
# hands.
LINGER_SECONDS = 2.0


class CountedProtocol(HttpToolsProtocol):
    """uvicorn's protocol for httptools, counted, and with an answer in our shape to what is no request."""

    def __init__(self, connections: ConnectionTable, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._books = connections
        self._in_head = False
        self._deaf = False  # what still comes is thrown away
        self._deadline: asyncio.TimerHandle | None = None
        self.begun: Callable[[], None] = lambda: None  # over TLS the handshake is told that it is over

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unread = Unread(self._books, self, transport)
        self.begun()
        if not self._books.opened(self):
            self._books.count_closed("refused")
            self._deaf = True
            text = f"the limit of {self._books.most} connections is reached, and all of them wait for their answers"
            self._say(ServiceError("overloaded", text, retry_after_seconds=1))
            return
        # Before its first request a connection may be silent for as long as after any other.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._books.closed(self)
        self._unread.rest()
        self._stop_listening()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for cycle in (self.cycle, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.scope[DISCONNECT_KEY].happen()  # type: ignore[literal-required]

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._unread.rest()
            self._book()

    def shutdown(self) -> None:
        """uvicorn's: the server ends."""
        super().shutdown()
        if self.transport.is_closing():
            self._unread.watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._unread.watch()
        elif not self.flow.write_paused:
            self._book()

    def evict(self) -> None:
        """Make room for another connection; who is in the middle of a body is told, if no answer has begun."""
        if self._unread.stalled or self.transport.is_closing():
            self.abort()
        elif self._owes_body and not self._deaf and not self.cycle.response_started:
            text = f"the limit of {self._books.most} connections is reached, and of this body nothing came for longest"
            self._break_off(ServiceError("overloaded", text, retry_after_seconds=1))
        else:
            self._close()

    def abort(self) -> None:
        """Be gone at once, whatever is still to be sent."""
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    @property
    def _busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _owes_body(self) -> bool:
        """Whether the request being answered has a body that is not there yet."""
        return self._busy and self.cycle.more_body and not self.pipeline

    def _book(self) -> None:
        """Write down who waits for whom now."""
        if self._busy and not self._owes_body:
            self._books.served(self)
        else:
            self._books.waits(self)

    def _break_off(self, error: ServiceError) -> None:
        """Read no more while a request is being answered; it gets the error where it is its body that is broken."""
        self._stop_listening()
        self.cycle.keep_alive = False
        if self.cycle.more_body and not self._in_head:
            error.close = True
            self.scope[REFUSAL_KEY] = error  # type: ignore[literal-required]
            self.cycle.message_event.set()

    def _say(self, error: ServiceError) -> None:
        """Answer in place of the app, and close once the client has had a chance to read it."""
        self.transport.write(raw_answer(error, self.server_state.default_headers, STATUS_LINE.__getitem__))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self._close)

    def _close(self) -> None:
        """Take nothing more, and close once the client has read what waits for it."""
        self._stop_listening()
        if not self.transport.is_closing():
            self.transport.close()
            self._unread.watch()

    def _stop_listening(self) -> None:
        """Throw away what still comes."""
        self._deaf = True
        if self._deadline is not None:
            self._deadline.cancel()
