"""One HTTP connection: uvicorn's, with limits to what a client may send and how long it may take."""

from typing import Any, Literal, NoReturn

import httptools

from ...errors import ServiceError
from ..disconnect import DISCONNECT_KEY, Disconnect
from .connection_table import ConnectionTable
from .counted_protocol import REFUSAL_KEY, CountedProtocol
from .request_head import check_headers, head_too_large, read_target

# Requests sent ahead of their answers on one connection; each costs memory before anything is known of it.
MAX_PIPELINED = 16

Phase = Literal["none", "head", "body"]

_VERSIONS = ("1.1", "1.0")  # the parser also takes 0.9 and 2.0


class _Refused(Exception):
    """Ends the parsing from within a callback of the parser."""


class Connection(CountedProtocol):
    """Limits for a request's head, and deadlines for head and body, which uvicorn has not.

    A request that comes whole costs no timer.
    """

    def __init__(self, connections: ConnectionTable, **uvicorn: Any) -> None:
        super().__init__(connections, **uvicorn)
        self._limits = connections.limits
        self._head_bytes = 0  # of an unfinished head, those of whole chunks
        self._trailers = 0
        self._refusal: ServiceError | None = None
        self._phase: Phase = "none"
        self._since = 0.0
        self._body_bytes = 0
        self._next_step = 0  # bytes of a body at which it has made progress again

    # What the transport calls.

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
                self._give_up(head_too_large(self._limits.max_header_bytes), "too_large")
                return
        else:
            self._body_bytes += len(data)
        self._set_deadline()

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
        version = self.parser.get_http_version()
        if len(self.pipeline) >= MAX_PIPELINED or version not in _VERSIONS:
            raise _Refused
        try:
            check_headers(self.url, self.headers, version, self._limits.max_header_bytes)
            self.url, host = read_target(self.parser.get_method(), self.url)
        except ServiceError as error:
            self._refuse(error)
        if host is not None:
            self.headers[:] = [(b"host", host), *(header for header in self.headers if header[0] != b"host")]
        self.scope[DISCONNECT_KEY] = Disconnect()  # type: ignore[literal-required]
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

    # Ours.

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

    def _refuse(self, error: ServiceError) -> NoReturn:
        self._refusal = error
        raise _Refused

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
