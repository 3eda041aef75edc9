"""One kept HTTP/1.1 connection of a client: a request, its answer, then the next."""

import asyncio
import re
from typing import NamedTuple

from .samples import GARBLED, REFUSED, RESET

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *\d", re.IGNORECASE)
_CHUNK = re.compile(rb"([0-9a-fA-F]+)[^\r\n]*\r\n")


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
    """Made by `connect`; one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._head: bytes | None = None
        self._seen = bytearray()
        self._length: int | None = 0

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
        if self._head is not None and self._length is None and exc is None:
            self._finish(bytes(self._seen))  # a body that ends with the connection
        else:
            self._fail(RESET)

    def data_received(self, data: bytes) -> None:
        """asyncio's: some bytes of the answer."""
        self._seen += data
        if self._head is None:
            end = self._seen.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = bytes(self._seen[: end + 2])
            if not _STATUS.match(self._head):
                self._fail(GARBLED)
                self.close()
                return
            del self._seen[: end + 4]
            found = _LENGTH.search(self._head)
            self._length = int(found[1]) if found else -1 if _CHUNKED.search(self._head) else None
        if self._length is None:
            return
        if self._length >= 0:
            if len(self._seen) >= self._length:
                self._finish(bytes(self._seen[: self._length]))
        elif self._seen.endswith(b"0\r\n\r\n"):
            self._finish(_unchunked(bytes(self._seen)))

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
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())
        self.close()

    def _finish(self, body: bytes) -> None:
        assert self._head is not None
        head, self._head = self._head, None
        self._seen.clear()
        if _CLOSE.search(head) and self._transport is not None:
            self._transport.close()
        status = _STATUS.match(head)
        if self._waiter is None or self._waiter.done():
            self.close()
        else:
            assert status is not None  # the head was looked at when it came
            self._waiter.set_result(Answer(status[1].decode(), body, bool(_RETRY_AFTER.search(head))))

    def _fail(self, outcome: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionFailed(outcome))


async def connect(host: str, port: int, timeout_seconds: float) -> Connection:
    """Open a connection.

    Raises:
        ConnectionFailed: nobody listens, or it was broken at once.
        TimeoutError: not open in time.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
    except TimeoutError:
        raise
    except OSError:
        raise ConnectionFailed(REFUSED) from None
    return connection


def _unchunked(data: bytes) -> bytes:
    parts, at = [], 0
    while (found := _CHUNK.match(data, at)) and (size := int(found[1], 16)):
        parts.append(data[found.end() : found.end() + size])
        at = found.end() + size + 2
    return b"".join(parts)
