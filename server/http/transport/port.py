"""A port that speaks HTTP: uvicorn on a socket that is there, with connections of ours, over TLS where asked for."""

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
from .connection import Connection
from .connection_table import ConnectionTable
from .handshake import Handshake
from .sockets import BACKLOG


class HttpPort(uvicorn.Server):
    """Serves one app. Signals are left to whoever runs it.

    Args:
        connections: its books.
        tls: None: plain HTTP.
        uvicorn_config: more of what `uvicorn.Config` takes.
    """

    def __init__(self, app: FastAPI, connections: ConnectionTable, tls: Tls | None, **uvicorn_config: Any) -> None:
        self._connections, self._tls = connections, tls
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=cast(type[asyncio.Protocol], functools.partial(Connection, connections)),
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
        """Signals are not this port's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's own for sockets that are there, but connections count from their accept on."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(uvicorn.config.STARTUP_FAILURE)
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(self._accepted, sock=listener, backlog=BACKLOG) for listener in sockets or []
        ]
        self.started = True

    def _accepted(self) -> asyncio.Protocol:
        """What begins to speak with a client that has connected."""
        if self._tls is None:
            return self._speaking()
        return Handshake(self._connections, self._tls, self.server_state.connections, self._speaking)

    def _speaking(self) -> Connection:
        make = cast(Callable[..., Connection], self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
