"""One HTTP connection: uvicorn's, with limits to what a client may send and how long it may take."""

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ..errors import ServiceError
from ..waiting import DEPARTURE_KEY, Departure
from .connections import Connections, raw_answer
from .unread import Unread

REFUSAL_KEY = "milkweed.refusal"
"""Where a request's scope says why the rest of its body will never come; a ServiceError."""

# Requests sent ahead of their answers on one connection; each costs memory before anything is known of it.
MAX_PIPELINED = 16

# For so long a closing connection still takes what is sent to it: a reset would destroy the answer in the client's
# hands.
LINGER_SECONDS = 2.0

Phase = Literal["none", "head", "body"]

_VERSIONS = ("1.1", "1.0")  # the parser also takes 0.9 and 2.0


def _nothing() -> None: ...


class _Refused(Exception):
    """Ends the parsing from within a callback of the parser."""


class Connection(HttpToolsProtocol):
    """uvicorn's protocol for httptools, and four things it has not: limits for a request's head, deadlines for
    head and body, an answer in our shape to what is no request, and an end for clients that do not read.

    A request that comes whole costs no timer.
    """

    def __init__(self, connections: Connections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._books = connections
        self._limits = connections.limits
        self._in_head = False
        self._head_bytes = 0  # of an unfinished head, those of whole chunks
        self._trailers = 0
        self._deaf = False  # what still comes is thrown away
        self._refusal: ServiceError | None = None
        self._phase: Phase = "none"
        self._since = 0.0
        self._body_bytes = 0
        self._next_step = 0  # bytes of a body at which it has made progress again
        self._deadline: asyncio.TimerHandle | None = None
        self.begun: Callable[[], None] = _nothing  # over TLS the handshake is told that it is over

    # What the transport calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unread = Unread(self._books, self, transport)
        self.begun()
        if not self._books.opened(self):
            self._books.count_closed("refused")
            self._deaf = True
            text = f"max_connections = {self._books.most} are open, and all of them wait for their answers"
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
                cycle.scope[DEPARTURE_KEY].happen()  # type: ignore[literal-required]

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        was_in_head = self._in_head
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._stay_with_http()
            return
        except httptools.HttpParserError:
            error = self._refusal or ServiceError("bad_request", "this is not HTTP/1.1 as RFC 9112 has it")
            self._give_up(error, "too_large" if error.code == "headers_too_large" else "malformed")
            return
        if self._in_head:
            self._head_bytes = self._head_bytes + len(data) if was_in_head else 0
            if self._head_bytes > self._limits.max_header_bytes:
                self._give_up(self._head_too_large(), "too_large")
                return
        else:
            self._body_bytes += len(data)
        self._set_deadline()

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

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._in_head = True
        self._trailers = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # after a chunked body: nobody vouches for it, so it does not count as a header
            self._trailers += 1
            if self._trailers > self._limits.max_headers:
                self._refuse(ServiceError("headers_too_large", f"more than {self._limits.max_headers} trailers"))
            return
        if len(self.headers) >= self._limits.max_headers:
            self._refuse(
                ServiceError("headers_too_large", f"more headers than the limit of {self._limits.max_headers}")
            )
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value)
        if size > self._limits.max_header_bytes:
            self._refuse(self._head_too_large())
        if len(self.pipeline) >= MAX_PIPELINED or self.parser.get_http_version() not in _VERSIONS:
            raise _Refused
        self.scope[DEPARTURE_KEY] = Departure()  # type: ignore[literal-required]
        super().on_headers_complete()
        self._in_head = False
        self._body_bytes = 0
        self._next_step = self._limits.body_bytes_per_second

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._busy:
            self._books.served(self)
        # uvicorn stops reading at a large piece of a body until the app asks for more, which it never does after the
        # last one: nobody would see the client leave.
        if not self.pipeline:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._unread.watch()
        elif not self.flow.write_paused:
            self._book()

    # Ours.

    def evict(self) -> None:
        """Make room for another connection; who is in the middle of a body is told, if no answer has begun."""
        if self._unread.stalled or self.transport.is_closing():
            self.abort()
        elif self._owes_body and not self._deaf and not self.cycle.response_started:
            text = f"max_connections = {self._books.most} are open, and of this body nothing came for longest"
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

    def _set_deadline(self) -> None:
        """Give what is still to come its time, once for a head and once for a body."""
        if self._in_head or not self._busy:
            phase: Phase = "head"
        else:
            phase = "body" if self.cycle.more_body else "none"
        if phase == self._phase:
            if phase == "body" and self._body_bytes >= self._next_step and self._owes_body:
                self._next_step = self._body_bytes + self._limits.body_bytes_per_second
                self._books.progressed(self)
            return
        self._phase = phase
        if phase == "body":
            self._book()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase != "none":
            self._since = self.loop.time()
            self._wait(self._limits.header_seconds if phase == "head" else self._limits.body_seconds)

    def _wait(self, seconds: float) -> None:
        self._deadline = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        """The time for a head or a body is over."""
        limits = self._limits
        if self._phase == "body" and self._busy and self.cycle.more_body:
            allowed = limits.body_seconds + self._body_bytes / limits.body_bytes_per_second
            rest = self._since + allowed - self.loop.time()
            if rest > 0 or self.flow.read_paused:  # the latter is our fault
                self._wait(max(rest, 1.0))
                return
            text = (
                f"{self._body_bytes} bytes of the body came within {allowed:.1f} s; the limit is "
                f"{limits.body_seconds:g} s and {limits.body_bytes_per_second} bytes a second"
            )
            self._give_up(ServiceError("request_timeout", text, close=True), "body_timeout")
        elif self._busy:  # a head behind a request that we have not answered yet
            self._wait(limits.header_seconds)
        elif self._in_head:
            text = f"the headers did not come within {limits.header_seconds:g} s"
            self._give_up(ServiceError("request_timeout", text, close=True), "head_timeout")
        else:  # the rest of a body that nobody wants, or blank lines
            self._books.count_closed("head_timeout")
            self._close()

    def _stay_with_http(self) -> None:
        """Answer a request for another protocol in this one, as the last on this connection.

        The parser takes what follows such a head to be of the other protocol, so there is no body.
        """
        self._deaf = True
        self.cycle.keep_alive = False
        for name, value in self.headers:
            if name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0"):
                text = "a request with a body cannot ask for another protocol: send it without Upgrade"
                self.scope[REFUSAL_KEY] = ServiceError("bad_request", text, close=True)  # type: ignore[literal-required]

    def _refuse(self, error: ServiceError) -> None:
        self._refusal = error
        raise _Refused

    def _head_too_large(self) -> ServiceError:
        return ServiceError(
            "headers_too_large", f"target and headers have more bytes than the limit of {self._limits.max_header_bytes}"
        )

    def _give_up(self, error: ServiceError, reason: str) -> None:
        """Read no more of this connection; whoever can still be answered is."""
        self._books.count_closed(reason)
        if self._busy:
            self._break_off(error)
        elif self.cycle is not None and self.cycle.more_body and not self._in_head:
            self._close()  # it has its answer already
        else:
            self._stop_listening()
            self._books.count_refused(error)
            self._say(error)

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
