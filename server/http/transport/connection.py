"""One HTTP connection: uvicorn's, which here limits what a client may send and how long it may take."""

from typing import Any, Literal, NoReturn

import httptools

from ...errors import ServiceError
from ...telemetry.context import DISCONNECT_KEY, Disconnect
from .connection_table import ConnectionTable
from .counted_protocol import REFUSAL_KEY, CountedProtocol
from .request_head import check_headers, head_too_large, read_target

# A client may send so many requests ahead of their answers; each costs memory before anything is known of it.
MAX_PIPELINED = 16

Phase = Literal["none", "head", "body"]

_VERSIONS = ("1.1", "1.0")  # the parser also takes 0.9 and 2.0


class _Refused(Exception):
    """Ends the parsing from within a callback of the parser."""


class Connection(CountedProtocol):
    """Limits the size of a request's head, and the time of its head and of its body; uvicorn does neither.

    A request that comes in one piece costs no timer.
    """

    def __init__(self, table: ConnectionTable, **uvicorn: Any) -> None:
        super().__init__(table, **uvicorn)
        self._settings = table.settings
        self._head_bytes = 0  # in whole chunks of an unfinished head
        self._trailers = 0
        self._refusal: ServiceError | None = None
        self._phase: Phase = "none"
        self._since = 0.0
        self._body_bytes = 0
        self._next_step = 0  # body bytes at which the body has made progress again

    # Called by the transport.

    def data_received(self, data: bytes) -> None:
        if self._ignoring_input:
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
            if self._head_bytes > self._settings.max_header_bytes:
                self._give_up(head_too_large(self._settings.max_header_bytes), "too_large")
                return
        else:
            self._body_bytes += len(data)
        self._set_deadline()

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._in_head = True
        self._trailers = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # a trailer, after a chunked body: it does not count as a header
            self._trailers += 1
            if self._trailers > self._settings.max_headers:
                self._refuse(ServiceError("headers_too_large", f"more than {self._settings.max_headers} trailers"))
            return
        if len(self.headers) >= self._settings.max_headers:
            self._refuse(
                ServiceError("headers_too_large", f"more headers than the limit of {self._settings.max_headers}")
            )
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        version = self.parser.get_http_version()
        if len(self.pipeline) >= MAX_PIPELINED or version not in _VERSIONS:
            raise _Refused
        try:
            check_headers(self.url, self.headers, version, self._settings.max_header_bytes)
            self.url, host = read_target(self.parser.get_method(), self.url)
        except ServiceError as error:
            self._refuse(error)
        if host is not None:
            self.headers[:] = [(b"host", host), *(header for header in self.headers if header[0] != b"host")]
        self.scope[DISCONNECT_KEY] = Disconnect()  # type: ignore[literal-required]
        super().on_headers_complete()
        self._in_head = False
        self._body_bytes = 0
        self._next_step = self._settings.body_min_bytes_per_second

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._answering:
            self._table.mark_busy(self)
        # After a large piece of a body uvicorn does not read until the app asks for more. After the last piece the app
        # never does, so nobody would see the client leave.
        if not self.pipeline:
            self.flow.resume_reading()

    def _set_deadline(self) -> None:
        """Set a timer for what is still to come: one for a head, one for a body."""
        if self._in_head or not self._answering:
            phase: Phase = "head"
        else:
            phase = "body" if self.cycle.more_body else "none"
        if phase == self._phase:
            if phase == "body" and self._body_bytes >= self._next_step and self._owes_body:
                self._next_step = self._body_bytes + self._settings.body_min_bytes_per_second
                self._table.mark_steady(self)
            return
        self._phase = phase
        if phase == "body":
            self._update_table()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase != "none":
            self._since = self.loop.time()
            settings = self._settings
            self._set_timer((settings.header_timeout_ms if phase == "head" else settings.body_timeout_ms) / 1e3)

    def _set_timer(self, seconds: float) -> None:
        self._deadline = self.loop.call_later(seconds, self._deadline_passed)

    def _deadline_passed(self) -> None:
        """End a connection whose head or body is late."""
        settings = self._settings
        if self._phase == "body" and self._answering and self.cycle.more_body:
            allowed = settings.body_timeout_ms / 1e3 + self._body_bytes / settings.body_min_bytes_per_second
            rest = self._since + allowed - self.loop.time()
            if rest > 0 or self.flow.read_paused:  # paused: the delay is ours
                self._set_timer(max(rest, 1.0))
                return
            text = (
                f"{self._body_bytes} bytes of the body came within {allowed:.1f} s; the limit is "
                f"{settings.body_timeout_ms / 1e3:g} s and {settings.body_min_bytes_per_second} bytes a second"
            )
            self._give_up(ServiceError("request_timeout", text, close=True), "body_timeout")
        elif self._answering:  # a head behind a request that we have not answered yet
            self._set_timer(settings.header_timeout_ms / 1e3)
        elif self._in_head:
            text = f"the headers did not come within {settings.header_timeout_ms / 1e3:g} s"
            self._give_up(ServiceError("request_timeout", text, close=True), "head_timeout")
        else:  # the rest of a body that is not read, or blank lines
            self._table.count_closed("head_timeout")
            self._close()

    def _stay_with_http(self) -> None:
        """Answer a request that asks to change the protocol in HTTP/1.1, as the last on this connection.

        The parser takes what follows such a head for the other protocol, so that no body can be read.
        """
        self._ignoring_input = True
        self.cycle.keep_alive = False
        for name, value in self.headers:
            if name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0"):
                text = "a request with a body cannot ask for another protocol: send it without Upgrade"
                self.scope[REFUSAL_KEY] = ServiceError("bad_request", text, close=True)  # type: ignore[literal-required]

    def _refuse(self, error: ServiceError) -> NoReturn:
        self._refusal = error
        raise _Refused

    def _give_up(self, error: ServiceError, reason: str) -> None:
        """Read no more of this connection; answer the requests that can still be answered."""
        self._table.count_closed(reason)
        if self._answering:
            self._fail_request(error)
        elif self.cycle is not None and self.cycle.more_body and not self._in_head:
            self._close()  # it has its answer already
        else:
            self._ignore_input()
            self._table.count_refused(error)
            self._respond(error)
