"""One kept HTTP/1.1 connection of a client, and requests that are sent alone, each on a connection of its own."""

import asyncio
import re
import sys
import time
from dataclasses import replace
from typing import NamedTuple, cast

import httptools

from .plan import Plan, Shot, Target
from .samples import GARBLED, OK, REFUSED, RESET

RETRY_SECONDS = 0.05


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
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(ConnectionFailed(RESET))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail(ConnectionFailed(GARBLED))
            self.close()

    def on_message_begin(self) -> None:
        self._body, self._retry_after = bytearray(), False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._retry_after |= name.lower() == b"retry-after" and value[:1].isdigit()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._transport is not None and not self._parser.should_keep_alive():
            self._transport.close()
        if self._waiter is None or self._waiter.done():
            self.close()  # nobody asked
        else:
            status = sys.intern(str(self._parser.get_status_code()))
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


async def connect(target: Target, timeout_seconds: float) -> Connection:
    """Open a connection.

    Raises:
        ConnectionFailed: nobody listens, or it was broken at once.
        TimeoutError: not open in time.
    """
    async with asyncio.timeout(timeout_seconds):
        try:
            _, connection = await asyncio.get_running_loop().create_connection(Connection, *target)
        except OSError:
            raise ConnectionFailed(REFUSED) from None
    return connection


async def ask(target: Target, request: bytes, timeout_seconds: float) -> Answer:
    """Send one request on a connection of its own; raises as `connect` and `Connection.post` do."""
    connection = await connect(target, timeout_seconds)
    try:
        return await connection.post(request, timeout_seconds)
    finally:
        connection.close()


def learned(plan: Plan) -> Plan:
    """The plan with the answer that each good shot gets from a server at rest, for comparison under load.

    Raises:
        RuntimeError: a good request is not answered with 200, or its answer has not what it is told by.
    """

    def expected(shot: Shot) -> bytes:
        answer = _post(plan, shot)
        match = re.search(plan.answer, answer.body, re.DOTALL)
        if answer.status != OK or match is None:
            raise RuntimeError(f"a good request of {len(shot.body)} bytes got {answer.status}: {answer.body[:300]!r}")
        return match[1] if plan.answer else b""

    shots = tuple(replace(shot, expected=expected(shot)) if shot.good else shot for shot in plan.shots)
    return replace(plan, shots=shots)


def recovery_seconds(plan: Plan, least_in_a_row: int, most_seconds: float) -> float | None:
    """How long it takes until so many lone requests in a row are answered with 200; None if longer than `most`."""
    begin, in_a_row = time.monotonic(), 0
    shot = next(shot for shot in plan.shots if shot.good)
    while (passed := time.monotonic() - begin) < most_seconds:
        if in_a_row == least_in_a_row:
            return round(passed, 2)
        try:
            answered = _post(plan, shot).status == OK
        except (ConnectionFailed, TimeoutError):
            answered = False
        in_a_row = in_a_row + 1 if answered else 0
        if not answered:
            time.sleep(RETRY_SECONDS)
    return None


def _post(plan: Plan, shot: Shot) -> Answer:
    target = plan.targets[0]
    return asyncio.run(ask(target, plan.wire(shot, target), plan.timeout_seconds))
