"""A relayed connection is counted for as long as it is open, whatever fails."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

from milkweed.server.config.settings import Settings
from milkweed.server.http.transport import relay
from milkweed.server.http.transport.connection_table import ConnectionTable
from milkweed.server.http.transport.relay import RelayPort
from milkweed.server.telemetry.metrics import Metrics

from ....support.server_parts import until
from ....support.waiting import HANG_SECONDS


async def test_a_connection_for_which_there_is_no_file_counts_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(family: int) -> None:
        raise OSError(24, "Too many open files")

    table = ConnectionTable(Settings(), 2, Metrics())
    port = RelayPort(table, socket.create_server(("127.0.0.1", 0)))
    await port.start()
    monkeypatch.setattr(relay, "socket", SimpleNamespace(socket=no_file, AF_UNIX=socket.AF_UNIX))
    for _ in range(3):
        reader, writer = await asyncio.open_connection(*port.listener.getsockname())
        assert await asyncio.wait_for(reader.read(), HANG_SECONDS) == b""
        writer.close()
    await until(lambda: table.open == 0)
    assert not port.connections
    port.close()
