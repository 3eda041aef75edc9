"""Accepts the connections of a port, one in a turn of the event loop."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable

logger = logging.getLogger("milkweed.serve")

# Of these errors accepting goes on after so long: they end when a file or memory becomes free.
PAUSE_SECONDS = 1.0
_NOTHING_FREE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts from now on, until `close`, which leaves the listener open. Belongs to the event loop.

    A loop's own server accepts all that wait, up to the backlog, in one turn, and what each of them has sent is worked
    through in the next: everybody else would wait for the whole of a flood.

    Args:
        seconds_between: the least time from one connection to the next.
    """

    def __init__(
        self, listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol], seconds_between: float = 0.0
    ) -> None:
        self._listener, self._make_protocol, self._seconds_between = listener, make_protocol, seconds_between
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept no more; may be called again, and once the listener is closed."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """Wait until what was accepted is connected."""
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _NOTHING_FREE:
                logger.error("cannot accept a connection for %s s: %s", PAUSE_SECONDS, error.strerror)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(PAUSE_SECONDS, self._resume)
            return  # any other: nobody waits any more
        if self._seconds_between:
            self._loop.remove_reader(self._listener)
            self._pause = self._loop.call_later(self._seconds_between, self._resume)
        connecting = self._loop.create_task(self._connect(connection))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client is gone already
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
