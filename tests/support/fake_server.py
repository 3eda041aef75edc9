"""A small HTTP server whose every answer and delay is known, on a thread of its own."""

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from .waiting import HANG_SECONDS

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BACKLOG = 4096
"""Connections that may wait to be accepted: a test opens hundreds at once."""


@dataclass
class Fake:
    """What it saw, and where it is.

    Args:
        bodies: of the requests, in order.
        heads: of the requests.
        connections: opened so far.
        left: connections that the client closed while it waited for an answer.
    """

    port: int = 0
    bodies: list[bytes] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0
    left: int = 0

    @property
    def target(self) -> tuple[str, int]:
        """The address, as a plan has it."""
        return "127.0.0.1", self.port


Answering = Callable[[int, bytes], Awaitable[bytes]]
"""Number of the request and its body -> the bytes of the answer; none of them = the connection is cut."""


@contextmanager
def fake_server(answer: Answering, port: int = 0) -> Iterator[Fake]:
    """Serve until the block ends; connections are cut then."""
    fake, loop, listening = Fake(), asyncio.new_event_loop(), threading.Event()
    tasks: set[asyncio.Task[None]] = set()
    transports: list[asyncio.WriteTransport] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fake.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"Content-Length: (\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                fake.heads.append(head)
                fake.bodies.append(body)
                answering = asyncio.ensure_future(answer(len(fake.bodies) - 1, body))
                gone = asyncio.ensure_future(reader.read(1))
                await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    fake.left += 1
                    answering.cancel()
                    break
                if not (said := answering.result()):
                    break
                gone.cancel()
                await asyncio.wait((gone,))  # to await itself would take our own end for its
                writer.write(said)
                await writer.drain()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transports.append(writer.transport)
        task = loop.create_task(talk(reader, writer))
        task.add_done_callback(lambda _: writer.close())  # also of one cancelled before it began
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def serve() -> None:
        server = await asyncio.start_server(accept, "127.0.0.1", port, backlog=BACKLOG)
        fake.port = server.sockets[0].getsockname()[1]
        listening.set()
        await stop.wait()
        for listening_socket in server.sockets:
            loop.remove_reader(listening_socket)
        await asyncio.sleep(0.01)  # what is being accepted has its transport then, which a closed server cannot give
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in transports:
            transport.abort()  # one that is closed still waits for a client to read what it wrote
        await asyncio.sleep(0)  # they end a turn later

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert listening.wait(HANG_SECONDS)
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(HANG_SECONDS)
        loop.close()
