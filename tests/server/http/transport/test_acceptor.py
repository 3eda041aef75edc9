"""A port accepts one connection in a turn of the loop, and goes on after an error."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from milkweed.server.http.transport import acceptor
from milkweed.server.http.transport.acceptor import Acceptor

from ....support.waiting import HANG_SECONDS, until


class Greeting(asyncio.Protocol):
    """Sends a word and closes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.write(b"hello")
        transport.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        yield bound


@contextlib.contextmanager
def clients(listener: socket.socket, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(listener.getsockname(), HANG_SECONDS)) for _ in range(count)
        ]


async def greeted(client: socket.socket) -> bytes:
    return await asyncio.to_thread(client.makefile("rb").read)


async def test_a_flood_is_accepted_one_in_a_turn(listener: socket.socket) -> None:
    made, counts = list[Greeting](), [0]

    def make() -> Greeting:
        made.append(Greeting())
        return made[-1]

    with clients(listener, 20) as flood:
        port = Acceptor(listener, make)
        async with asyncio.timeout(HANG_SECONDS):
            while len(made) < 20:
                await asyncio.sleep(0)
                counts.append(len(made))
        assert {after - before for before, after in pairwise(counts)} == {0, 1}
        assert [await greeted(client) for client in flood] == [b"hello"] * 20
    port.close()


class Failing:
    """A listener whose accept raises these errors first."""

    def __init__(self, listener: socket.socket, *numbers: int) -> None:
        self._listener, self._numbers = listener, list(numbers)
        self.setblocking, self.fileno = listener.setblocking, listener.fileno

    def accept(self) -> Any:
        if self._numbers:
            raise OSError(self._numbers.pop(0), "an error")
        return self._listener.accept()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ECONNABORTED])
async def test_an_error_ends_no_port(listener: socket.socket, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "PAUSE_SECONDS", 0.001)
    with clients(listener, 1) as (client,):
        port = Acceptor(Failing(listener, number, number), Greeting)  # type: ignore[arg-type]
        assert await greeted(client) == b"hello"
    port.close()


async def test_close_leaves_the_listener_and_those_that_wait_to_others(listener: socket.socket) -> None:
    port = Acceptor(listener, Greeting)
    port.close()
    with clients(listener, 1) as (client,):
        accepted, address = listener.accept()
        assert address == client.getsockname()
        accepted.close()
    listener.close()
    port.close()
    await port.wait_closed()


async def test_close_within_a_pause_ends_it(listener: socket.socket) -> None:
    with clients(listener, 1):
        port = Acceptor(Failing(listener, errno.EMFILE), Greeting)  # type: ignore[arg-type]
        await until(lambda: port._pause is not None)
        port.close()
        assert port._pause is not None
        assert port._pause.cancelled()
