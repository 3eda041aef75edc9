"""Relays the connections of a port to a library that serves them, gRPC's, so that they count and end as our own do.

The library listens on a Unix socket that has no file. Our end of each has a name, by which it tells whose call it is.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Iterator
from functools import partial

from .acceptor import Acceptor
from .connection_table import ConnectionTable
from .turns import Turns
from .unread import NOT_READING_SECONDS

PIECE_BYTES = 1 << 16
"""A connection of which less is read in NOT_READING_SECONDS is closed where an answer waits for its client."""

SECONDS_BETWEEN = 0.002
"""The least time between two connections that begin, and between two that end. gRPC's threads do so much for each that
a crowd would take the machine from other clients; gRPC's own clients keep their connections."""

MOST_WAITING = 1024
"""So many connections wait for their beginning at most, which takes them two seconds."""


class RelayPort:
    """Relays from `start` to `close`, which closes `listener`. `table`: counts the connections, with other ports'."""

    def __init__(self, table: ConnectionTable, listener: socket.socket) -> None:
        self.table, self.listener = table, listener
        self.library = f"milkweed-{secrets.token_hex(8)}"  # the name of its socket
        self.connections: dict[str, RelayedConnection] = {}
        self.open: set[_End] = set()  # both ends of each
        self.ends = Turns(SECONDS_BETWEEN)

    async def start(self) -> None:
        """Accept from now on."""
        evicted = partial(self.table.count_closed, "evicted")
        most = min(MOST_WAITING, self.table.max_connections)  # RELAYED_FILES counts their files
        self._acceptor = Acceptor(
            self.listener, partial(RelayedConnection, self), Turns(SECONDS_BETWEEN), most, evicted
        )

    def close(self) -> None:
        """Accept no more; connections go on until either side closes them, or until `end`."""
        self._acceptor.close()
        self.listener.close()

    async def end(self) -> None:
        """Close at once what is still connected, and return when it is closed."""
        self._acceptor.drop_waiting()
        await self._acceptor.wait_closed()
        while self.open:
            for end in tuple(self.open):
                end.abort()
            await asyncio.sleep(0)


class _End(asyncio.Protocol):
    """One of the two ends of a relayed connection. What it reads, the other sends on, no faster than it is taken."""

    def __init__(self, port: RelayPort, other: "_End") -> None:
        self._port, self.other = port, other
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []  # what the other has read before this one is connected
        self.sent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._port.open.add(self)
        transport.writelines(self._early)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        self.other.send(data)

    def send(self, data: bytes) -> None:
        """Send on what the other end has read."""
        self.sent += len(data)
        if self._transport is None:
            self._early.append(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    def pause_writing(self) -> None:
        self.other.read(False)

    def resume_writing(self) -> None:
        self.other.read(True)

    def read(self, on: bool) -> None:
        """Go on reading, or stop."""
        assert self._transport is not None  # it has read what fills the other
        if not self.closing:
            (self._transport.resume_reading if on else self._transport.pause_reading)()

    def eof_received(self) -> bool | None:
        self.close()
        self.other.close()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.open.discard(self)
        self.other.close()

    def close(self) -> None:
        """Close once what waits has been taken."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def closing(self) -> bool:
        """Whether nothing more is taken, or nothing yet."""
        return self._transport is None or self._transport.is_closing()


class RelayedConnection(_End):
    """A client's connection, which owes us something unless an answer is being made for it."""

    def __init__(self, port: RelayPort) -> None:
        super().__init__(port, _End(port, self))
        self._table = port.table
        self._name = ""
        self._answering = 0
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client = (transport.get_extra_info("peername") or ("",))[0]
        self.spare = not self._table.opened(self)
        """Whether it found no room, so that it may ask for a probe alone."""
        self._joining = asyncio.create_task(self._join())

    async def _join(self) -> None:
        """Connect to the library."""
        if self.closing:
            return
        end = None
        try:
            end = socket.socket(socket.AF_UNIX)
            end.setblocking(False)
            end.bind("")  # the kernel finds a name
            self._name = end.getsockname()[1:].decode()
            self._port.connections[self._name] = self
            end.connect(f"\0{self._port.library}")  # at once, or not at all where too many wait
            await asyncio.get_running_loop().create_unix_connection(lambda: self.other, sock=end)
        except OSError:
            if end is not None:
                end.close()
            self.abort()
        if self.closing:
            self.other.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._port.connections.pop(self._name, None)
        self._table.closed(self)
        if self._late is not None:
            self._late.cancel()

    def eof_received(self) -> bool:
        self._port.ends.add(super().eof_received)
        return True  # until then it stays open

    def close(self) -> None:
        if self.closing:
            return
        super().close()
        self._late = asyncio.get_running_loop().call_later(NOT_READING_SECONDS, self.abort)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Within, an answer is being made, and the connection makes no room for others."""
        self._answering += 1
        self._table.mark_busy(self)
        try:
            yield
        finally:
            self._answering -= 1
            if not self._answering and not self.closing:
                self._table.mark_waiting(self)

    async def end_unless_read(self) -> None:
        """Close the connection if hardly anything is read of it. Cancelled once an answer has been taken."""
        sent = -PIECE_BYTES
        while self.sent - sent >= PIECE_BYTES:
            sent = self.sent
            await asyncio.sleep(NOT_READING_SECONDS)
        self._table.count_closed("not_reading")
        self.abort()

    evict = _End.abort
