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
from milkweed.server.http.transport.turns import Turns

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


def join(stack: contextlib.ExitStack, listener: socket.socket, source: str) -> socket.socket:
    """A client at this address of loopback, which has connected and said who it is."""
    at = listener.getsockname()
    client = stack.enter_context(socket.create_connection(at, HANG_SECONDS, source_address=(source, 0)))
    client.sendall(b"%d\n" % client.getsockname()[1])
    return client


class Named(asyncio.Protocol):
    """Notes the ports of clients in the order in which their connections begin."""

    begun: list[int]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.begun.append(transport.get_extra_info("peername")[1])


@pytest.fixture
def named() -> type[Named]:
    return type("Fresh", (Named,), {"begun": []})


def port_of(client: socket.socket) -> int:
    return int(client.getsockname()[1])


async def test_a_new_client_goes_before_the_crowd_of_another_and_of_a_crowd_the_newest(
    listener: socket.socket, named: type[Named]
) -> None:
    with contextlib.ExitStack() as stack:
        crowd = [join(stack, listener, "127.0.0.2") for _ in range(20)]
        turns = Turns(3600)
        port = Acceptor(listener, named, turns, 20)
        await until(lambda: len(named.begun) == 1 and len(port._queue) == 19)
        new = join(stack, listener, "127.0.0.1")
        await until(lambda: len(port._queue) == 20)
        while port._queue:
            turns._next()
        await until(lambda: len(named.begun) == 21)
        first, *rest = named.begun
        assert port_of(new) in rest[:2]
        rest.remove(port_of(new))
        assert rest == [port_of(client) for client in reversed(crowd) if port_of(client) != first]
    port.close()


async def test_beyond_the_limit_the_oldest_of_the_largest_crowd_goes_and_is_counted(
    listener: socket.socket, named: type[Named]
) -> None:
    evicted = list[None]()
    with contextlib.ExitStack() as stack:
        first = join(stack, listener, "127.0.0.1")
        turns = Turns(3600)
        port = Acceptor(listener, named, turns, 4, lambda: evicted.append(None))
        await until(lambda: named.begun == [port_of(first)])
        new, *crowd = (join(stack, listener, source) for source in ("127.0.0.1", *["127.0.0.2"] * 7))
        await until(lambda: len(evicted) == 4)
        while port._queue:
            turns._next()
        await until(lambda: len(named.begun) == 5)
        assert set(named.begun[1:]) == {port_of(client) for client in (new, *crowd[4:])}
    port.close()


async def test_who_has_gone_meanwhile_takes_no_turn(listener: socket.socket, named: type[Named]) -> None:
    with contextlib.ExitStack() as stack:
        first = join(stack, listener, "127.0.0.1")
        port = Acceptor(listener, named, Turns(0.001), 100)
        await until(lambda: named.begun == [port_of(first)])
        for _ in range(10):
            socket.create_connection(listener.getsockname(), HANG_SECONDS).close()
        last = join(stack, listener, "127.0.0.1")
        await until(lambda: port_of(last) in named.begun)
        await until(lambda: not port._queue)
        assert named.begun == [port_of(first), port_of(last)]
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
