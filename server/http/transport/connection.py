"""One HTTP connection: uvicorn's, which here limits what a client may send and how long it may take."""

from typing import Any, Literal, NoReturn

import httptools

from ...errors import ServiceError
from ...security.auth import PROBES
from ...telemetry.context import DISCONNECT_KEY, Disconnect
from .connection_table import ConnectionTable
from .counted_protocol import CountedProtocol
from .request_head import check_headers, head_too_large, read_target

# A client may send so many requests ahead of their answers; each costs memory before anything is known of it.
MAX_PIPELINED = 16

# Bytes parsed at once, unless they are of one body; what is behind a request without an answer is seen after these.
SLICE_BYTES = 1 << 14

Phase = Literal["none", "head", "body"]

_HEAD_END = b"\r\n\r\n"
_VERSIONS = ("1.1", "1.0")  # the parser also takes 0.9 and 2.0
_REASONS = {"headers_too_large": "too_large", "overloaded": "refused"}  # for which a connection is closed
_PROBES = frozenset(path.encode() for path in PROBES)


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
        self._body_bytes = self._body_left = 0
        self._next_step = 0  # body bytes at which the body has made progress again

    # Called by the transport.

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        start = 0
        while start < len(data) and not self._ignoring_input:
            piece = memoryview(data)[start : self._piece_end(data, start)]
            start += len(piece)
            if self._behind:
                if self._table.ahead_bytes + len(piece) > self._table.max_ahead_bytes:
                    self._table.count_closed("too_large")
                    self._fail_request(self._too_many("too much was sent ahead of answers"))
                    return
                self._count_ahead(len(piece))
            self._parse(piece)
        if not self._ignoring_input:
            self._set_deadline()

    def _piece_end(self, data: bytes, start: int) -> int:
        """How far to parse at once: where a head with a large body comes, to its end, so that the body is one piece."""
        head = -1 if start or self._body_left or len(data) <= SLICE_BYTES else data.find(_HEAD_END, 0, SLICE_BYTES)
        return start + max(SLICE_BYTES, self._body_left) if head < 0 else head + len(_HEAD_END)

    def _parse(self, data: bytes | memoryview) -> None:
        was_in_head = self._in_head
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            error = self._refusal or ServiceError("bad_request", "this is not HTTP/1.1 as RFC 9112 has it")
            self._give_up(error, _REASONS.get(error.code, "malformed"))
            return
        if self._in_head:
            self._head_bytes = self._head_bytes + len(data) if was_in_head else 0
            if self._head_bytes > self._settings.max_header_bytes:
                self._give_up(head_too_large(self._settings.max_header_bytes), "too_large")
                return
        else:
            self._body_bytes += len(data)

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
        if self._declines_upgrade:
            return
        try:
            check_headers(self.url, self.headers, version, self._settings.max_header_bytes)
            self.url, host = read_target(self.parser.get_method(), self.url)
        except ServiceError as error:
            self._refuse(error)
        if self._spare and self.url.partition(b"?")[0] not in _PROBES:
            self._refuse(self._too_many("all of them wait for their answers"))
        if host is not None:
            self.headers[:] = [(b"host", host), *(header for header in self.headers if header[0] != b"host")]
        self.scope[DISCONNECT_KEY] = Disconnect()  # type: ignore[literal-required]
        self.expect_100_continue &= version != "1.0"  # which has no such answer
        super().on_headers_complete()
        self.cycle.keep_alive &= not self._spare
        self._in_head = False
        self._body_bytes = 0
        self._body_left = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        self._next_step = self._settings.body_min_bytes_per_second

    def on_body(self, body: bytes) -> None:
        self._body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._declines_upgrade:
            return
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
            left = self._since + allowed - self.loop.time()
            if left > 0 or self.flow.read_paused:  # paused: the delay is ours
                self._set_timer(max(left, 1.0))
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

    @property
    def _declines_upgrade(self) -> bool:
        """Whether the head offers to change the protocol, which is not done."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _decline_upgrade(self, following: bytes | memoryview) -> None:
        """Parse a head that offers to change the protocol once more, without the offer: the parser takes what follows
        such a head, `following`, for the other protocol, and would skip the body."""
        if not self._declines_upgrade:  # CONNECT, which has been answered
            self._ignore_input()
            self.cycle.keep_alive = False
            return
        line = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        head = b"".join(b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._parse(line + head + b"\r\n" + following)

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
