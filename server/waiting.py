"""Waiting for an answer while the client may leave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive, Scope

from .errors import ClientGone

WATCH_AFTER_SECONDS = 0.5
"""A client that leaves sooner is noticed no earlier: its answer is nearly there, and watching costs a task."""


@asynccontextmanager
async def watched(waiter: "asyncio.Future[None]", receive: Receive) -> AsyncIterator[None]:
    """Within, the waiter fails with ClientGone once the client has closed its connection."""
    loop = asyncio.get_running_loop()
    watchers: list[asyncio.Task[None]] = []
    timer = loop.call_later(WATCH_AFTER_SECONDS, lambda: watchers.append(loop.create_task(_watch(waiter, receive))))
    try:
        yield
    finally:
        timer.cancel()
        for watcher in watchers:
            watcher.cancel()


def source_of(scope: Scope) -> str | None:
    """Who asks: the name that came with the key, else the address; None over a socket that has none."""
    named: str | None = scope.get("milkweed.source")
    if named is not None:
        return named
    client = scope.get("client")
    return client[0] if client else None


async def _watch(waiter: "asyncio.Future[None]", receive: Receive) -> None:
    """Give the waiter up as soon as the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        continue
    if not waiter.done():
        waiter.set_exception(ClientGone("wait"))
