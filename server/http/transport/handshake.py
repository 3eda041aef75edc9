"""What comes before a connection over TLS: its handshake, which counts as a connection and may have to make room."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvloop.loop import SSLProtocol  # type: ignore[attr-defined]  # what uvloop itself puts before a protocol over TLS

from ...security.tls import Tls
from .connection import Connection
from .connection_table import ConnectionTable

# `Unread` sees to it that a closing connection ends; TLS shall not cut off a client that reads slowly.
SHUTDOWN_SECONDS = 86_400.0


class Handshake(SSLProtocol):  # type: ignore[misc]
    """TLS below one connection. From the accept until the handshake is done it stands in the books itself.

    Args:
        books: of the port.
        among: the connections that the server waits for when it ends.
        speaking: makes the connection that takes over.
    """

    def __init__(self, books: ConnectionTable, tls: Tls, among: set[Any], speaking: Callable[[], Connection]) -> None:
        self._books, self._among = books, among
        self._shaking = False
        connection = speaking()
        connection.begun = self._done
        super().__init__(
            asyncio.get_running_loop(),
            connection,
            tls,
            None,
            server_side=True,
            ssl_handshake_timeout=books.limits.header_seconds,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )

    def connection_made(self, transport: asyncio.Transport) -> None:
        """uvloop's: the client has connected."""
        self._wire = transport
        self._shaking = True
        self._among.add(self)
        self._books.opened(self)  # where there is no room the connection will say so, over TLS
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """uvloop's: the connection is gone."""
        self._done()
        super().connection_lost(exc)

    def _done(self) -> None:
        """It is the connection that counts from now on, if there is one."""
        if self._shaking:
            self._shaking = False
            self._among.discard(self)
            self._books.closed(self)

    def evict(self) -> None:
        """Make room for another connection."""
        self._wire.abort()

    abort = shutdown = evict
