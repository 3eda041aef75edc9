"""Waiting for an answer while the client may leave."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import Receive, Scope

from ..errors import ClientDisconnected

DISCONNECT_KEY = "milkweed.departure"
"""Where a connection puts its Departure into a request's scope."""

WATCH_AFTER_SECONDS = 0.5
"""A client that leaves sooner is noticed no earlier: its answer is nearly there, and watching costs a task."""


class Disconnect:
    """Tells whoever waits for an answer that the connection is gone; made by it, one a request."""

    __slots__ = ("_tell", "gone")

    def __init__(self) -> None:
        self.gone = False
        self._tell: Callable[[], None] | None = None

    def listen(self, tell: Callable[[], None] | None) -> None:
        """Call this once the connection is gone, at once if it is; None: nobody listens any more."""
        self._tell = tell
        if self.gone and tell is not None:
            tell()

    def happen(self) -> None:
        """The connection is gone."""
        self.gone = True
        if self._tell is not None:
            self._tell()


@asynccontextmanager
async def cancel_on_disconnect(
    waiter: "asyncio.Future[None]", receive: Receive | None, departure: Disconnect | None = None
) -> AsyncIterator[None]:
    """Within, the waiter fails with ClientDisconnected once the client has closed its connection.

    Args:
        receive: where it is seen that the client leaves; None where its leaving cancels the task.
        departure: where the connection tells it, at once and for nothing; else `receive` is asked, after a while.
    """

    def give_up() -> None:
        if not waiter.done():
            waiter.set_exception(ClientDisconnected("wait"))

    if departure is not None:
        departure.listen(give_up)
        try:
            yield
        finally:
            departure.listen(None)
        return
    if receive is None:
        yield
        return
    loop = asyncio.get_running_loop()
    watchers: list[asyncio.Task[None]] = []
    timer = loop.call_later(WATCH_AFTER_SECONDS, lambda: watchers.append(loop.create_task(_watch(give_up, receive))))
    try:
        yield
    finally:
        timer.cancel()
        for watcher in watchers:
            watcher.cancel()


def caller_of(scope: Scope) -> str | None:
    """Who asks: the name that came with the key, else the address; None over a socket that has none."""
    named: str | None = scope.get("milkweed.source")
    if named is not None:
        return named
    client = scope.get("client")
    return client[0] if client else None


async def _watch(give_up: Callable[[], None], receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    give_up()
