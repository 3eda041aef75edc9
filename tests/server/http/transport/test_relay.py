"""A relayed connection passes on all bytes, no faster than they are taken, and counts for as long as it is open."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace

import pytest

from milkweed.server.config.settings import Settings
from milkweed.server.http.transport import relay
from milkweed.server.http.transport.connection_table import ConnectionTable
from milkweed.server.http.transport.relay import RelayPort
from milkweed.server.telemetry.metrics import Metrics

from ....support.server_parts import until
from ....support.waiting import HANG_SECONDS

Library = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
MUCH = bytes(range(256)) * 40_000


@contextlib.asynccontextmanager
async def relaying(library: Library) -> AsyncIterator[RelayPort]:
    """A port in front of a library; in the end nothing may be open."""
    table = ConnectionTable(Settings(), 2, Metrics())
    port = RelayPort(table, socket.create_server(("127.0.0.1", 0)))
    server = await asyncio.start_unix_server(library, f"\0{port.library}")
    await port.start()
    async with asyncio.timeout(HANG_SECONDS):
        yield port
    await until(lambda: table.open == 0)
    assert not port.connections
    port.close()
    server.close()


async def connected(port: RelayPort) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*port.listener.getsockname())


async def test_all_bytes_go_both_ways() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(10_000):
            writer.write(piece)
            await writer.drain()
        writer.close()

    async with relaying(echo) as port:
        for _ in range(3):
            reader, writer = await connected(port)
            writer.write(MUCH)
            assert await reader.readexactly(len(MUCH)) == MUCH
            writer.close()


async def test_what_the_library_said_before_it_closed_arrives() -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(MUCH)
        writer.close()

    async with relaying(say) as port:
        reader, writer = await connected(port)
        assert await reader.read(-1) == MUCH
        writer.close()


async def test_what_a_client_said_before_it_left_arrives() -> None:
    heard = asyncio.get_running_loop().create_future()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set_result(await reader.read(-1))
        writer.close()

    async with relaying(hear) as port:
        _, writer = await connected(port)
        writer.write(MUCH)
        writer.close()
        assert await heard == MUCH


async def test_no_more_is_read_than_is_taken() -> None:
    """The relay buffers a small part of 64 MiB that one side sends and the other does not read."""
    go, size = asyncio.Event(), 64 << 20

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(size))
        await go.wait()
        assert len(await reader.readexactly(size)) == size
        await writer.drain()
        writer.close()

    async with relaying(late) as port:
        reader, writer = await connected(port)
        writer.write(bytes(size))
        await until(lambda: port.connections)
        (connection,) = port.connections.values()
        ends = connection, connection.other
        await until(lambda: all(end._transport is not None and not end._transport.is_reading() for end in ends))
        assert max(end.sent for end in ends) < size // 4  # the rest are buffers of the kernel
        go.set()
        assert len(await reader.readexactly(size)) == size
        await writer.drain()
        writer.close()


async def test_a_client_that_reads_nothing_of_what_a_library_left_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "NOT_READING_SECONDS", 0.01)

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(64 << 20))
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    async with relaying(say) as port:
        with socket.create_connection(port.listener.getsockname()) as client:
            await until(lambda: port.connections)
            (connection,) = port.connections.values()
            connection.close()
            await until(lambda: port.table.open == 0)
            client.settimeout(HANG_SECONDS)
            with contextlib.suppress(ConnectionResetError):
                while client.recv(1 << 20):
                    pass


async def test_a_connection_for_which_there_is_no_file_counts_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(family: int) -> None:
        raise OSError(24, "Too many open files")

    async def nobody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError

    async with relaying(nobody) as port:
        monkeypatch.setattr(relay, "socket", SimpleNamespace(socket=no_file, AF_UNIX=socket.AF_UNIX))
        for _ in range(3):
            reader, writer = await connected(port)
            assert await reader.read() == b""
            writer.close()


@pytest.mark.parametrize("begun", [True, False])
async def test_nothing_is_open_once_it_has_ended(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is connected, nor what waits for its beginning."""
    calls: list[asyncio.StreamWriter] = []

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(writer)
        await reader.read(-1)
        writer.close()

    if not begun:
        monkeypatch.setattr(relay, "SECONDS_BETWEEN", 2 * HANG_SECONDS)
    async with relaying(wait) as port:
        clients = [await connected(port) for _ in range(3)]
        await until(lambda: len(calls) == 3 if begun else len(port.open) == 2)
        port.close()
        await port.end()
        assert not port.open
        assert [await reader.read(-1) for reader, _ in clients] == [b""] * 3
        for _, writer in clients:
            writer.close()
