"""Requests behind others: all are answered in order, and of all connections one such request begins in a turn."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from milkweed.server.config.settings import Settings
from milkweed.server.http.transport.connection_table import ConnectionTable
from milkweed.server.http.transport.port import HttpPort
from milkweed.server.telemetry.context import DISCONNECT_KEY
from milkweed.server.telemetry.metrics import Metrics

from ....support.waiting import HANG_SECONDS

CLIENTS, REQUESTS = 8, 6
HEAD = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def listening(app: Any, table: ConnectionTable | None = None) -> AsyncIterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = HttpPort(app, table or ConnectionTable(Settings(), 99, Metrics()), None, lifespan="off")
        serving = asyncio.create_task(port.serve([listener]))
        async with asyncio.timeout(HANG_SECONDS):
            yield listener
            port.should_exit = True
            await serving


async def test_of_many_connections_one_request_behind_another_begins_in_a_turn() -> None:
    begun: Counter[int] = Counter()  # by the turn of the loop
    turn, over, app = 0, asyncio.Event(), FastAPI()

    async def count_turns() -> None:
        nonlocal turn
        while not over.is_set():
            turn += 1
            await asyncio.sleep(0)

    @app.get("/{number}")
    async def answer(number: int) -> int:
        if number:  # the first of each connection is behind no other
            begun[turn] += 1
        return number

    async def ask() -> list[bytes]:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"".join(HEAD % number for number in range(REQUESTS)))
        answers = []
        for _ in range(REQUESTS):
            await reader.readuntil(b"\r\n\r\n")
            answers.append(await reader.readexactly(1))
        writer.close()
        return answers

    async with listening(app) as listener:
        counting = asyncio.create_task(count_turns())
        answers = await asyncio.gather(*(ask() for _ in range(CLIENTS)))
        assert answers == [[b"%d" % number for number in range(REQUESTS)]] * CLIENTS
        over.set()
        await counting
    assert sum(begun.values()) == CLIENTS * (REQUESTS - 1)
    assert set(begun.values()) == {1}


async def test_a_client_that_leaves_is_noticed_by_the_request_that_others_are_behind() -> None:
    entered, heard, sent = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        assert scope[DISCONNECT_KEY].gone
        heard.set()
        await send({"type": "http.response.start", "status": 200, "headers": []})  # to nobody: no error
        await send({"type": "http.response.body", "body": b"x"})
        sent.set()

    async with listening(app) as listener:
        _, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(HEAD % 0 + HEAD % 1 + HEAD % 2)
        await entered.wait()
        writer.transport.abort()
        await heard.wait()
        await sent.wait()
