"""Serves the service's port: hands signals on, and ends without losing a request."""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Iterator
from types import FrameType
from typing import Protocol

from fastapi import FastAPI

from ..http.transport.connection_table import ConnectionLimits, ConnectionTable
from ..http.transport.port import HttpPort
from ..http.transport.sockets import accept_all, drop_newcomers
from ..security.tls import Tls
from ..service.service import Service

# The server waits this much longer than the service, so that the service can answer every client first.
DRAIN_MARGIN_SECONDS = 2

# When no new client is let in any more, those that have connected may still bring a request for so long. Half of it is
# left to those that are half-way through connecting: a round trip to anywhere.
LAST_REQUEST_SECONDS = 1.0


class ServerHooks(Protocol):
    """Called by the server when it starts, when it stops, and on its signals."""

    grace_seconds: float
    """How long the server went on accepting after it was told to end."""

    async def on_started(self) -> None:
        """The server listens."""

    async def on_stopping(self) -> None:
        """No new client is let in any more; returns once the other ports have stopped."""

    def on_signal(self, number: int) -> None:
        """SIGTERM or SIGINT came."""


class HttpServer(HttpPort):
    """A port that drains on a signal: uvicorn's own closes the listener at once and ends by the signal, not with 0.

    Args:
        max_connections: open at once.
        tls: None is plain HTTP.
    """

    def __init__(
        self, app: FastAPI, service: Service, hooks: ServerHooks, *, max_connections: int, tls: Tls | None
    ) -> None:
        settings = service.settings
        table = ConnectionTable(ConnectionLimits.of(settings), max_connections, service.metrics)
        service.metrics.connections.set_function(lambda: table.open)
        super().__init__(
            app,
            table,
            tls,
            lifespan="on",
            timeout_keep_alive=settings.keep_alive_seconds,
            timeout_graceful_shutdown=int(settings.drain_seconds) + DRAIN_MARGIN_SECONDS,
        )
        self._service, self._hooks = service, hooks

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
        """Called on a signal; the hooks decide what it means."""
        self._hooks.on_signal(sig)

    def drain(self) -> None:
        """Let no new client in and end once all are answered; requests that take too long get an error."""
        self.should_exit = True
        asyncio.get_running_loop().call_later(self._service.settings.drain_seconds, self._service.abandon)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept clients, then start what starts with the server."""
        await super().startup(sockets)
        await self._hooks.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let no new client in, answer those that have connected, then close what is idle."""
        listeners = sockets or []
        others_stopped = asyncio.create_task(self._hooks.on_stopping())
        last = min(LAST_REQUEST_SECONDS, self._hooks.grace_seconds)
        end = time.monotonic() + last
        if all(map(drop_newcomers, listeners)):
            await asyncio.sleep(last / 2)
        connected = [peer for listener in listeners for peer in accept_all(listener)]
        for server in self.servers:
            server.close()
        for listener in listeners:
            listener.close()
        for peer in connected:
            await asyncio.get_running_loop().connect_accepted_socket(self._make_protocol, peer)
        # A request may be on its way in every open connection; closing now would reset it.
        while self.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self._service.stop_accepting()
        await others_stopped
        await super().shutdown(sockets)
