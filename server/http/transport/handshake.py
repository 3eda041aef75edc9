"""The TLS handshake before a connection, which counts as a connection and may be evicted."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvloop.loop import SSLProtocol  # type: ignore[attr-defined]  # what uvloop puts below a protocol over TLS

from ...security.tls import Tls
from .connection import Connection
from .connection_table import ConnectionTable

# `Unread` ends a closing connection; TLS must not cut off a client that reads slowly.
SHUTDOWN_SECONDS = 86_400.0


class Handshake(SSLProtocol):  # type: ignore[misc]
    """TLS below one connection. From the accept until the end of the handshake it is itself in the table.

    Args:
        table: the connections of the port.
        open_connections: those that the server waits for when it ends.
        make_connection: makes the connection that takes over; it calls `on_made` once it does.
    """

    def __init__(
        self, table: ConnectionTable, tls: Tls, open_connections: set[Any], make_connection: Callable[..., Connection]
    ) -> None:
        self._table, self._open_connections = table, open_connections
        self._in_handshake = False
        super().__init__(
            asyncio.get_running_loop(),
            make_connection(on_made=self._end_handshake),
            tls,
            None,
            server_side=True,
            ssl_handshake_timeout=table.settings.header_timeout_ms / 1e3,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Called by uvloop: the client has connected."""
        self._tcp_transport = transport
        self._in_handshake = True
        self._open_connections.add(self)
        self._table.opened(self)  # where there is no room the connection will say so, over TLS
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by uvloop: the connection is gone."""
        self._end_handshake()
        super().connection_lost(exc)

    def _end_handshake(self) -> None:
        """From now on the connection counts instead, if there is one."""
        if self._in_handshake:
            self._in_handshake = False
            self._open_connections.discard(self)
            self._table.closed(self)

    def evict(self) -> None:
        """Make room for another connection."""
        self._tcp_transport.abort()

    abort = shutdown = evict
