"""The service's port: its signals, and an end that loses nothing."""

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

# The server waits this much longer than the service, so that the service has the last word to each client.
DRAIN_MARGIN_SECONDS = 2

# When nobody new is let in any more, whoever has connected may still bring a request for so long. Half of it is for who
# is half-way through connecting: a round trip to anywhere.
LAST_REQUEST_SECONDS = 1.0


class ServerHooks(Protocol):
    """What begins and ends with the server, and what its signals mean."""

    grace_seconds: float
    """That it went on accepting after it was told to end."""

    async def begun(self) -> None:
        """It listens."""

    async def ending(self) -> None:
        """Nobody can connect any more; returns once what is beside HTTP has ended."""

    def signalled(self, number: int) -> None:
        """SIGTERM or SIGINT came."""


class HttpServer(HttpPort):
    """A port with our signals: uvicorn's own closes the listener at once and ends by the signal, not with 0.

    Args:
        most: connections at once.
        tls: None: plain HTTP.
    """

    def __init__(self, app: FastAPI, service: Service, life: ServerHooks, *, most: int, tls: Tls | None) -> None:
        settings = service.settings
        connections = ConnectionTable(ConnectionLimits.of(settings), most, service.metrics)
        service.metrics.connections.set_function(lambda: connections.open)
        super().__init__(
            app,
            connections,
            tls,
            lifespan="on",
            timeout_keep_alive=settings.keep_alive_seconds,
            timeout_graceful_shutdown=int(settings.drain_seconds) + DRAIN_MARGIN_SECONDS,
        )
        self._service, self._life = service, life

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
        asyncio.get_running_loop().call_later(self._service.settings.drain_seconds, self._service.abandon)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, then what begins with it."""
        await super().startup(sockets)
        await self._life.begun()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let nobody connect any more, answer who already has, then close what is idle."""
        listeners = sockets or []
        others_ended = asyncio.create_task(self._life.ending())
        last = min(LAST_REQUEST_SECONDS, self._life.grace_seconds)
        end = time.monotonic() + last
        if all(map(drop_newcomers, listeners)):
            await asyncio.sleep(last / 2)
        connected = [peer for listener in listeners for peer in accept_all(listener)]
        for server in self.servers:
            server.close()
        for listener in listeners:
            listener.close()
        for peer in connected:
            await asyncio.get_running_loop().connect_accepted_socket(self._accepted, peer)
        # A request may be on its way in every open connection; closing now would reset it.
        while self.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self._service.stop_accepting()
        await others_ended
        await super().shutdown(sockets)
