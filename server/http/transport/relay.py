"""Relays the connections of a port to a library that serves them, gRPC's, so that they count and end as our own do.

The library listens on a Unix socket that has no file. Our end of each has a name, by which it tells whose call it is.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Iterator

from .connection_table import ConnectionTable
from .sockets import BACKLOG
from .unread import NOT_READING_SECONDS

PIECE_BYTES = 1 << 16
"""Bytes read at once; an end that reads slowly has a few such pieces in memory."""


class RelayPort:
    """Relays from `start` to `close`, which closes `listener`. `table`: counts the connections, with other ports'."""

    def __init__(self, table: ConnectionTable, listener: socket.socket) -> None:
        self.table, self.listener = table, listener
        self.library = f"milkweed-{secrets.token_hex(8)}"  # the name of its socket
        self.connections: dict[str, RelayedConnection] = {}

    async def start(self) -> None:
        """Accept from now on."""
        self._server = await asyncio.start_server(self._relay, sock=self.listener, limit=PIECE_BYTES, backlog=BACKLOG)

    def close(self) -> None:
        """Accept no more; connections go on until either side closes them."""
        self._server.close()
        self.listener.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, name, end = RelayedConnection(self.table, writer), "", None
        try:
            end = socket.socket(socket.AF_UNIX)
            end.setblocking(False)
            end.bind("")  # the kernel finds a name
            name = end.getsockname()[1:].decode()
            self.connections[name] = connection
            end.connect(f"\0{self.library}")  # at once, or not at all where too many wait
            answers, requests = await asyncio.open_unix_connection(sock=end, limit=PIECE_BYTES)
            ways = _copy(reader, requests), _copy(answers, writer, connection)
            copying = [asyncio.create_task(way) for way in ways]
            await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(copying, timeout=NOT_READING_SECONDS)
        except (OSError, asyncio.CancelledError):  # cancelled: the process ends
            if end is not None:
                end.close()
        connection.abort()
        self.connections.pop(name, None)
        self.table.closed(connection)


class RelayedConnection:
    """A client's connection, which owes us something unless an answer is being made for it."""

    def __init__(self, table: ConnectionTable, writer: asyncio.StreamWriter) -> None:
        self._table, self._writer = table, writer
        self.client = (writer.get_extra_info("peername") or ("",))[0]
        self.sent = self._answering = 0
        self.spare = not table.opened(self)
        """Whether it found no room, so that it may ask for a probe alone."""

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Within, an answer is being made, and the connection makes no room for others."""
        self._answering += 1
        self._table.mark_busy(self)
        try:
            yield
        finally:
            self._answering -= 1
            if not self._answering and not self._writer.transport.is_closing():
                self._table.mark_waiting(self)

    async def end_unless_read(self) -> None:
        """Close the connection if hardly anything is read of it. Cancelled once an answer has been taken."""
        sent = -PIECE_BYTES
        while self.sent - sent >= PIECE_BYTES:
            sent = self.sent
            await asyncio.sleep(NOT_READING_SECONDS)
        self._table.count_closed("not_reading")
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()

    evict = abort


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: RelayedConnection | None = None
) -> None:
    """Send on what is read, no faster than it is taken; count it where it goes to a client."""
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
            if connection is not None:
                connection.sent += len(piece)
