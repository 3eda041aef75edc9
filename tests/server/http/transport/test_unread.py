"""A connection ends when its client reads nothing for too long, and not before."""

import asyncio
from typing import Any

import pytest

from milkweed.server.http.transport import unread
from milkweed.server.http.transport.unread import Unread

pytestmark = pytest.mark.anyio


class Transport:
    """So many bytes wait to be read; it is over TLS, and what is below has gone already."""

    def __init__(self) -> None:
        self.size, self.closing = 1000, False

    def get_write_buffer_size(self) -> int:
        return self.size

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> None:
        return None


class Books:
    """Notes what is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.ended = asyncio.Event()

    def waits(self, connection: Any) -> None:
        self.told.append("waits")

    def served(self, connection: Any) -> None:
        self.told.append("served")

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
async def test_who_stops_reading_waits_in_line_and_then_ends() -> None:
    transport, books = Transport(), Books()
    watch = Unread(books, books, transport)  # type: ignore[arg-type]
    watch.watch()
    while not watch.stalled:
        await asyncio.sleep(0)
    transport.size -= 1
    while watch.stalled:
        await asyncio.sleep(0)
    await asyncio.wait_for(books.ended.wait(), 10)
    assert books.told == ["waits", "served", "waits", "not_reading"]


@pytest.mark.usefixtures("quick")
async def test_who_has_read_all_and_does_not_close_ends_uncounted() -> None:
    transport, books = Transport(), Books()
    transport.size, transport.closing = 0, True
    Unread(books, books, transport).watch()  # type: ignore[arg-type]
    await asyncio.wait_for(books.ended.wait(), 10)
    assert books.told == ["waits"]


@pytest.mark.usefixtures("quick")
async def test_who_is_not_watched_any_more_goes_on() -> None:
    transport, books = Transport(), Books()
    watch = Unread(books, books, transport)  # type: ignore[arg-type]
    watch.watch()
    watch.rest()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(books.ended.wait(), 0.4)
    assert books.told == []
