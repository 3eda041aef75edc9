"""No request leaves a cycle: what it held is free with its end, and not only once the collector walks all there is."""

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from milkweed.server.config.settings import Settings
from milkweed.server.http.transport.connection_table import ConnectionTable
from milkweed.server.telemetry.metrics import Metrics

from ..support.server_parts import Running, Start, encoded, entered
from ..support.waiting import HANG_SECONDS
from .http.transport.test_pipelining import listening
from .oip.grpc_client import Client, calling, grpc

TIMES = 3
POST = b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
CUT = encoded("JPEG", size=(300, 300))[:-400]


def ours(thing: object) -> str:
    """The name of what is of the server's own kind, or of a frame of its own, else nothing."""
    if type(thing).__name__ == "frame":
        name = str(thing.f_globals.get("__name__"))  # type: ignore[attr-defined]
        return f"frame of {thing.f_code.co_qualname}" if name.startswith("milkweed") else ""  # type: ignore[attr-defined]
    mine = type(thing).__module__.startswith("milkweed") or type(thing).__name__ == "_ServicerContext"  # a call of gRPC
    return type(thing).__qualname__ if mine else ""


@contextmanager
def counted_cycles() -> Iterator[Counter[str]]:
    """Count, of what within is left to the collector, what is ours."""
    left: Counter[str] = Counter()
    gc.collect()
    gc.freeze()  # what other tests left is none of it
    gc.disable()
    try:
        yield left
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left.update(filter(None, map(ours, gc.garbage)))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


@asynccontextmanager
async def connected(at: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*at)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def asking(data: bytes, answer: bytes) -> Callable[[Running, Any], Awaitable[None]]:
    """Send this and read the head of one answer, on a connection that then ends."""

    async def ask(_: Running, at: Any) -> None:
        async with connected(at) as (reader, writer):
            writer.write(data)
            assert answer in await reader.readuntil(b"\r\n")

    return ask


async def leave(app: Running, at: Any) -> None:
    """Send a photograph, and leave while it is computed."""
    app.model.gate.clear()
    image = encoded()
    async with connected(at) as (_, writer):
        writer.write(POST % len(image) + image)
        await entered(app.model)
    app.model.gate.set()


HTTP = {
    "answered": asking(POST % len(encoded()) + encoded(), b"200"),
    "cut": asking(POST % len(CUT) + CUT, b"422"),
    "no HTTP": asking(b"GET / HTTP/9.9\r\n\r\n", b"400"),
    "left in the body": asking(GET + POST % 99 + b"x", b"200"),
    "left with requests behind": asking(GET * 9, b"200"),
    "left before the answer": leave,
}


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("what", HTTP)
async def test_http(running: Start, what: str) -> None:
    table = ConnectionTable(Settings(), 99, Metrics())
    async with running() as app, listening(app.app, table) as listener:
        for first in (True, False):  # the first time imports and fills caches
            with contextlib.nullcontext(Counter[str]()) if first else counted_cycles() as left:
                for _ in range(TIMES):
                    await HTTP[what](app, listener.getsockname())
                async with asyncio.timeout(HANG_SECONDS):
                    while table.open or app.service.dispatcher.requests:
                        await asyncio.sleep(0.001)
        assert not left


async def infer(client: Client) -> None:
    await client.ask("ModelInfer", client.infer(encoded()))


async def refuse(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await client.start("ModelInfer", b"\xff")


async def cancel(client: Client) -> None:
    call = client.channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")()
    await call.write(client.infer(encoded()).SerializeToString())
    call.cancel()


@pytest.mark.parametrize("ask", [infer, refuse, cancel])
async def test_grpc(running: Start, ask: Callable[[Client], Awaitable[None]]) -> None:
    async with running() as app, calling(app) as client:
        for first in (True, False):
            with contextlib.nullcontext(Counter[str]()) if first else counted_cycles() as left:
                for _ in range(TIMES):
                    await ask(client)
                await infer(client)  # behind the others: by its answer, those are over
                async with asyncio.timeout(HANG_SECONDS):
                    while app.service.body_budget.total:
                        await asyncio.sleep(0.001)
        assert not left
