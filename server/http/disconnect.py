"""Ends the wait for an answer when the client leaves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import Receive

from ..errors import ClientDisconnected
from ..telemetry.context import Disconnect

WATCH_AFTER_SECONDS = 0.5
"""Without a Disconnect a client that leaves sooner is not noticed: its answer is nearly there, and watching costs a
task."""


@asynccontextmanager
async def cancel_on_disconnect(
    waiter: "asyncio.Future[None]", receive: Receive | None, disconnect: Disconnect | None = None
) -> AsyncIterator[None]:
    """Within, the waiter fails with ClientDisconnected once the client has closed its connection.

    Args:
        receive: asked for the disconnect, after a while; None where a client that leaves cancels the task.
        disconnect: tells it at once and for nothing, so that `receive` is not asked.
    """

    def give_up() -> None:
        if not waiter.done():
            waiter.set_exception(ClientDisconnected("wait"))

    if disconnect is not None:
        disconnect.listen(give_up)
        try:
            yield
        finally:
            disconnect.listen(None)
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


async def _watch(give_up: Callable[[], None], receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    give_up()
