"""One kept HTTP/1.1 connection of a client: a request, its answer, then the next."""

import asyncio
from typing import NamedTuple

import httptools

from .samples import GARBLED, REFUSED, RESET


class Answer(NamedTuple):
    """A complete answer."""

    status: str
    body: bytes
    retry_after: bool


class ConnectionFailed(Exception):
    """No answer; `outcome` is the word for how it ended."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Connection(asyncio.Protocol):
    """Made by `connect`; one request at a time. The `on_` methods are called by the parser."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._parser = httptools.HttpResponseParser(self)

    @property
    def usable(self) -> bool:
        """Whether another request can be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: it is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the other side closed it, or it broke."""
        self._transport = None
        self._fail(ConnectionFailed(RESET))

    def data_received(self, data: bytes) -> None:
        """asyncio's: some bytes of the answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail(ConnectionFailed(GARBLED))
            self.close()

    def on_message_begin(self) -> None:
        """An answer begins."""
        self._body, self._retry_after = bytearray(), False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header came."""
        self._retry_after |= name.lower() == b"retry-after" and value[:1].isdigit()

    def on_body(self, body: bytes) -> None:
        """Some of the body came, as it was before it was cut in chunks."""
        self._body += body

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._transport is not None and not self._parser.should_keep_alive():
            self._transport.close()
        if self._waiter is None or self._waiter.done():
            self.close()  # nobody asked
        else:
            status = str(self._parser.get_status_code())
            self._waiter.set_result(Answer(status, bytes(self._body), self._retry_after))

    async def post(self, request: bytes, timeout_seconds: float) -> Answer:
        """Send a request and wait for its answer.

        Raises:
            ConnectionFailed: the connection ended before the answer did.
            TimeoutError: no answer in time; the connection is closed.
        """
        if self._transport is None:
            raise ConnectionFailed(RESET)
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        self._transport.write(request)
        timer = loop.call_later(timeout_seconds, self._give_up)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None

    def close(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self) -> None:
        self._fail(TimeoutError())
        self.close()

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


async def connect(host: str, port: int, timeout_seconds: float) -> Connection:
    """Open a connection.

    Raises:
        ConnectionFailed: nobody listens, or it was broken at once.
        TimeoutError: not open in time.
    """
    async with asyncio.timeout(timeout_seconds):
        try:
            _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
        except OSError:
            raise ConnectionFailed(REFUSED) from None
    return connection
