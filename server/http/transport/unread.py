"""What is written to a client and not yet read by it."""

import asyncio
import contextlib
import fcntl
import sys
import termios

from .connection_table import ConnectionTable, Counted

# For so long a client may read nothing of what waits for it. It is looked at as often as the second one says.
NOT_READING_SECONDS = 30.0
LOOK_SECONDS = 1.0

# For so long a connection over TLS that is closing, and of which all has been read, waits for the client to close it.
LAST_WORD_SECONDS = 2.0


class Unread:
    """Ends a connection whose client reads nothing for too long; one that reads slowly may go on.

    Args:
        transport: what is written to.
    """

    def __init__(self, books: ConnectionTable, connection: Counted, transport: asyncio.Transport) -> None:
        self._books, self._connection, self._transport = books, connection, transport
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._size, self._read_at = 0, 0.0
        self.stalled = False
        """Whether the client has read nothing between two looks. It may then have to make room for another one."""

    def watch(self) -> None:
        """Look from now on, since something waits to be read."""
        if self._timer is None:
            self._size, self._read_at = self._count(), self._loop.time()
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def rest(self) -> None:
        """Look no more."""
        self.stalled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now, size = self._loop.time(), self._count()
        # Any change: TLS has a buffer below that we do not see, out of which the kernel's is filled again.
        moved = size != self._size
        if moved:
            self._size, self._read_at = size, now
        allowed = NOT_READING_SECONDS if size or not self._transport.is_closing() else LAST_WORD_SECONDS
        if now - self._read_at >= allowed:
            if size:
                self._books.count_closed("not_reading")
            self._connection.abort()
            return
        if self.stalled is moved:
            self.stalled = not moved
            (self._books.waits if self.stalled else self._books.served)(self._connection)
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _count(self) -> int:
        """Bytes in our buffers, and in the kernel's until the client's system has acknowledged them."""
        sent, sock = bytes(4), self._transport.get_extra_info("socket")
        if sock is not None:  # else the connection is gone, and we are about to hear of it
            with contextlib.suppress(OSError):  # a kind of socket that does not tell
                sent = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, sent)
        return int.from_bytes(sent, sys.byteorder) + self._transport.get_write_buffer_size()
