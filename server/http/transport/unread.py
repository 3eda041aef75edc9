"""Ends connections whose client does not read what was sent to it."""

import asyncio
import contextlib
import fcntl
import sys
import termios

from .connection_table import ConnectionTable, Evictable

# A client may read nothing for so long while something waits for it; one looks every LOOK_SECONDS.
NOT_READING_SECONDS = 30.0
LOOK_SECONDS = 1.0

# A closing connection over TLS whose client has read everything waits for so long until the client closes it.
LAST_WORD_SECONDS = 2.0


class Unread:
    """Ends one connection if its client reads nothing for too long; a client that reads slowly may go on."""

    def __init__(self, table: ConnectionTable, connection: Evictable, transport: asyncio.Transport) -> None:
        self._table, self._transport = table, transport
        self._connection: Evictable | None = connection
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._size, self._read_at = 0, 0.0
        self.stalled = False
        """Whether the client has read nothing between two looks. It may then be evicted."""

    def start(self) -> None:
        """Look from now on, since something waits to be read."""
        if self._timer is None and self._connection is not None:
            self._size, self._read_at = self._count(), self._loop.time()
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def stop(self) -> None:
        """Look no more."""
        self.stalled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Look never again. With the connection, which has this, it would be a cycle, and wait for the collector."""
        self.stop()
        self._connection = None

    def _look(self) -> None:
        assert self._connection is not None  # the timer is stopped with it
        now, size = self._loop.time(), self._count()
        # Any change counts: below, TLS has a buffer that we do not see and that fills the kernel's again.
        moved = size != self._size
        if moved:
            self._size, self._read_at = size, now
        allowed = NOT_READING_SECONDS if size or not self._transport.is_closing() else LAST_WORD_SECONDS
        if now - self._read_at >= allowed:
            if size:
                self._table.count_closed("not_reading")
            self._connection.abort()
            return
        if self.stalled is moved:
            self.stalled = not moved
            (self._table.mark_waiting if self.stalled else self._table.mark_busy)(self._connection)
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _count(self) -> int:
        """Bytes in our buffers, and in the kernel's until the client's system has acknowledged them."""
        sent, sock = bytes(4), self._transport.get_extra_info("socket")
        if sock is not None:  # else the connection is gone, and connection_lost comes soon
            with contextlib.suppress(OSError):  # this kind of socket does not tell
                sent = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, sent)
        return int.from_bytes(sent, sys.byteorder) + self._transport.get_write_buffer_size()
