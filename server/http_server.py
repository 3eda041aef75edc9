"""The HTTP server of one process: uvicorn, with connections of ours and an end that loses nothing."""

import asyncio
import contextlib
import functools
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol, cast

import uvicorn
from fastapi import FastAPI

from .listener import BACKLOG, accept_all
from .security.connection import Connection
from .security.connections import Connections
from .security.tls import Tls
from .service import Service
from .settings import Settings

# The server waits this much longer than the service, so that the service has the last word to each client.
DRAIN_MARGIN_SECONDS = 2

# After the listener is closed, connections that are open may still bring a request for so long.
LAST_REQUEST_SECONDS = 1.0


class Life(Protocol):
    """What begins and ends with the server, and what its signals mean."""

    grace_seconds: float
    """That it went on accepting after it was told to end."""

    async def begun(self) -> None:
        """It listens."""

    async def ending(self) -> None:
        """Nobody can connect any more; returns once what is beside HTTP has ended."""

    def signalled(self, number: int) -> None:
        """SIGTERM or SIGINT came."""


class HttpServer(uvicorn.Server):
    """uvicorn with our signals: its own closes the listener at once and ends by the signal, not with 0.

    Args:
        tls: None: plain HTTP.
    """

    def __init__(self, app: FastAPI, service: Service, life: Life, tls: Tls | None) -> None:
        settings = service.settings
        super().__init__(_config(app, settings, Connections(settings, service.metrics)))
        self._front, self._life = service, life
        # A handshake may take as long as a request's headers.
        self._tls_options: dict[str, Any] = (
            {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": settings.header_timeout_ms / 1e3}
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT while serving; as PID 1 too, where the kernel ignores unhandled ones."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """What a signal means is not the server's to know."""
        self._life.signalled(sig)

    def drain(self) -> None:
        """Let nobody connect any more and end once all are answered; those who take too long are told so."""
        self.should_exit = True
        asyncio.get_running_loop().call_later(self._front.settings.drain_seconds, self._front.abandon)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's own for sockets that are there, with a limit to the time of a TLS handshake."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(uvicorn.config.STARTUP_FAILURE)
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(self._protocol, sock=listener, backlog=BACKLOG, **self._tls_options)
            for listener in sockets or []
        ]
        self.started = True
        await self._life.begun()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let nobody connect any more, answer who already has, then close what is idle."""
        others_ended = asyncio.create_task(self._life.ending())
        connected = [peer for listener in sockets or [] for peer in accept_all(listener)]
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for peer in connected:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, peer, **self._tls_options)
        # A request may be on its way in every open connection; closing now would reset it.
        end = time.monotonic() + min(LAST_REQUEST_SECONDS, self._life.grace_seconds)
        while self.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self._front.stop_accepting()
        await others_ended
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        """What uvicorn makes for a connection that it accepts itself."""
        make = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def _config(app: FastAPI, settings: Settings, connections: Connections) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=cast(type[asyncio.Protocol], functools.partial(Connection, connections)),
        ws="none",
        lifespan="on",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=int(settings.drain_seconds) + DRAIN_MARGIN_SECONDS,
    )
