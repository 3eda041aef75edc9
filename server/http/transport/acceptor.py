"""Accepts the connections of a port, one in a turn of the event loop."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable

from .turns import Turns

logger = logging.getLogger("milkweed.serve")

# Of these errors accepting goes on after so long: they end when a file or memory becomes free.
PAUSE_SECONDS = 1.0
_NOTHING_FREE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Queue:
    """Accepted connections that wait for their beginning: clients take turns, and of each the newest goes first.

    In the order in which they came, a new client would wait for thousands of another, and those who have waited longest
    are the likeliest to have given up.
    """

    def __init__(self) -> None:
        self._by_client: dict[str, deque[socket.socket]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, client: str, connection: socket.socket) -> None:
        """Let a connection wait."""
        self._by_client.setdefault(client, deque()).append(connection)
        self._count += 1

    def next(self) -> socket.socket:
        """Take the newest connection of the client whose turn it is."""
        client = next(iter(self._by_client))
        connections = self._by_client.pop(client)
        connection = connections.pop()
        if connections:
            self._by_client[client] = connections  # behind the other clients
        self._count -= 1
        return connection

    def oldest(self) -> socket.socket:
        """Take the oldest connection of the client that has most."""
        client = max(self._by_client, key=lambda client: len(self._by_client[client]))
        connection = self._by_client[client].popleft()
        if not self._by_client[client]:
            del self._by_client[client]
        self._count -= 1
        return connection


class Acceptor:
    """Accepts from now on, until `close`, which leaves the listener open. Belongs to the event loop.

    A loop's own server accepts all that wait, up to the backlog, in one turn, and what each of them has sent is worked
    through in the next: everybody else would wait for the whole of a flood.

    Args:
        turns: in which connections begin, out of a queue; without them each begins at once.
        most_waiting: connections in the queue at most; then the oldest of the client that has most is closed.
        evicted: called when one is closed so.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        turns: Turns | None = None,
        most_waiting: int = 0,
        evicted: Callable[[], None] = lambda: None,
    ) -> None:
        self._listener, self._make_protocol, self._loop = listener, make_protocol, asyncio.get_running_loop()
        self._turns, self._queue, self._most_waiting, self._evicted = turns, Queue(), most_waiting, evicted
        self._connecting: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept no more; may be called again, and once the listener is closed. What was accepted goes on."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)

    def drop_waiting(self) -> None:
        """Close what waits in the queue for its beginning."""
        while len(self._queue):
            self._queue.next().close()

    async def wait_closed(self) -> None:
        """Wait until what was accepted is connected."""
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError as error:
            if error.errno in _NOTHING_FREE:
                logger.error("cannot accept a connection for %s s: %s", PAUSE_SECONDS, error.strerror)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(PAUSE_SECONDS, self._resume)
            return  # any other: nobody waits any more
        if self._turns is None:
            self._begin(connection)
            return
        self._queue.add(address[0], connection)
        if len(self._queue) <= self._most_waiting:
            self._turns.add(self._begin_next)
        else:
            self._queue.oldest().close()
            self._evicted()

    def _begin_next(self) -> None:
        if not len(self._queue):  # dropped
            return
        connection = self._queue.next()
        if _is_gone(connection):
            connection.close()
        else:
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        connecting = self._loop.create_task(self._connect(connection))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client is gone already
            await self._loop.connect_accepted_socket(self._make_protocol, connection)


def _is_gone(connection: socket.socket) -> bool:
    """Whether the client has closed it and sent nothing before."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
