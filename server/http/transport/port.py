"""Serves an app over HTTP or HTTPS on a socket that is bound already: uvicorn with our own connections."""

import asyncio
import contextlib
import functools
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from ...security.tls import Tls
from .acceptor import Acceptor
from .connection import Connection
from .connection_table import ConnectionTable
from .handshake import Handshake


class HttpPort(uvicorn.Server):
    """Serves one app. It handles no signals.

    Args:
        table: counts the port's connections.
        tls: None is plain HTTP.
        uvicorn_config: further arguments of `uvicorn.Config`.
    """

    def __init__(self, app: FastAPI, table: ConnectionTable, tls: Tls | None, **uvicorn_config: Any) -> None:
        self._table, self._tls = table, tls
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=cast(type[asyncio.Protocol], functools.partial(Connection, table)),
                ws="none",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                server_header=False,
                **uvicorn_config,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone, which uvicorn would handle."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does on given sockets, but with connections that count from their accept on."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(uvicorn.config.STARTUP_FAILURE)
        acceptors = [Acceptor(listener, self._make_protocol) for listener in sockets or []]
        self.servers = cast(list[asyncio.Server], acceptors)  # uvicorn closes them, and waits for that
        self.started = True

    def _make_protocol(self) -> asyncio.Protocol:
        """What talks to a client that has connected."""
        if self._tls is None:
            return self._make_connection()
        return Handshake(self._table, self._tls, self.server_state.connections, self._make_connection)

    def _make_connection(self, **options: Any) -> Connection:
        make = cast(Callable[..., Connection], self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state, **options)
