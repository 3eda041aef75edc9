"""A connection ends when its client reads nothing for too long, and not before."""

import asyncio
from typing import Any

import pytest

from milkweed.server.admin.server import END_SECONDS
from milkweed.server.http.transport import unread
from milkweed.server.http.transport.unread import Unread
from milkweed.server.process.side_ports import DRAIN_MARGIN_SECONDS

from ....support.waiting import HANG_SECONDS


class Transport:
    """A transport over TLS with some bytes that wait to be read, and whose socket has gone already."""

    def __init__(self) -> None:
        self.size, self.closing = 1000, False

    def get_write_buffer_size(self) -> int:
        return self.size

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> None:
        return None


class Table:
    """Notes what is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.ended = asyncio.Event()

    def mark_waiting(self, connection: Any) -> None:
        self.told.append("waiting")

    def mark_busy(self, connection: Any) -> None:
        self.told.append("busy")

    def count_closed(self, reason: str) -> None:
        self.told.append(reason)

    def abort(self) -> None:
        self.ended.set()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "NOT_READING_SECONDS", 0.2)
    monkeypatch.setattr(unread, "LAST_WORD_SECONDS", 0.1)
    monkeypatch.setattr(unread, "LOOK_SECONDS", 0.01)


@pytest.mark.usefixtures("quick")
async def test_a_client_that_stops_reading_may_be_evicted_and_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "NOT_READING_SECONDS", HANG_SECONDS)
    transport, table = Transport(), Table()
    unread_watch = Unread(table, table, transport)  # type: ignore[arg-type]
    unread_watch.start()
    while not unread_watch.stalled:
        await asyncio.sleep(0)
    transport.size -= 1
    while unread_watch.stalled:
        await asyncio.sleep(0)
    monkeypatch.setattr(unread, "NOT_READING_SECONDS", 0.05)
    await asyncio.wait_for(table.ended.wait(), HANG_SECONDS)
    assert table.told == ["waiting", "busy", "waiting", "not_reading"]


@pytest.mark.usefixtures("quick")
async def test_a_client_that_has_read_all_and_does_not_close_is_cut_off_uncounted() -> None:
    transport, table = Transport(), Table()
    transport.size, transport.closing = 0, True
    Unread(table, table, transport).start()  # type: ignore[arg-type]
    await asyncio.wait_for(table.ended.wait(), HANG_SECONDS)
    assert table.told == ["waiting"]


def test_every_port_outlasts_idle_clients_over_tls() -> None:
    longest = unread.LAST_WORD_SECONDS + 2 * unread.LOOK_SECONDS
    assert longest < END_SECONDS
    assert longest < DRAIN_MARGIN_SECONDS


@pytest.mark.usefixtures("quick")
async def test_a_stopped_watch_cuts_off_nobody() -> None:
    transport, table = Transport(), Table()
    unread_watch = Unread(table, table, transport)  # type: ignore[arg-type]
    unread_watch.start()
    unread_watch.stop()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(table.ended.wait(), 0.4)
    assert table.told == []
