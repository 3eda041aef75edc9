"""Serves the service's port: drains on a signal, and ends without losing a request."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from fastapi import FastAPI

from ..http.transport.connection_table import ConnectionTable
from ..http.transport.port import HttpPort
from ..http.transport.sockets import accept_all, drop_newcomers
from ..security.tls import Tls
from ..service.service import Service
from .side_ports import DRAIN_MARGIN_SECONDS, SidePorts

logger = logging.getLogger("milkweed.serve")

# When no new client is let in any more, those that have connected may still bring a request for so long. Half of it is
# left to those that are half-way through connecting: a round trip to anywhere.
LAST_REQUEST_SECONDS = 1.0


class HttpServer(HttpPort):
    """The service's port, which starts and stops the side ports with it.

    uvicorn's own server would close the listener at once on a signal, and end by the signal instead of with 0.

    Args:
        table: counts the connections.
        tls: None is plain HTTP.
    """

    def __init__(
        self, app: FastAPI, service: Service, side_ports: SidePorts, *, table: ConnectionTable, tls: Tls | None
    ) -> None:
        settings = service.settings
        super().__init__(
            app,
            table,
            tls,
            lifespan="on",
            timeout_keep_alive=settings.keep_alive_seconds,
            timeout_graceful_shutdown=int(settings.drain_seconds) + DRAIN_MARGIN_SECONDS,
        )
        self._service, self._side_ports = service, side_ports
        self._grace_seconds = 0.0  # how long it went on accepting after a signal
        self.signalled = False
        self.failed = False

    def fail(self) -> None:
        """End the process with 1."""
        self.failed = self.should_exit = True

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
        """Drain on the first signal, after a moment as not ready unless it is Ctrl-C; end at once on the second."""
        if self.signalled:
            logger.warning("second signal: ending at once")
            exit_now(128 + sig)
        self.signalled = True
        grace = self._grace_seconds = 0.0 if sig == signal.SIGINT else self._service.settings.drain_grace_seconds
        logger.info("stopping", extra={"event": {"signal": signal.Signals(sig).name, "grace": grace}})
        self._service.begin_drain()
        asyncio.get_running_loop().call_later(grace, self._drain)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept clients, then open the side ports."""
        await super().startup(sockets)
        await self._side_ports.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let no new client in, answer those that have connected, then close what is idle."""
        listeners = sockets or []
        side_ports_stopped = asyncio.create_task(self._side_ports.stop())
        last = min(LAST_REQUEST_SECONDS, self._grace_seconds)
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
        await side_ports_stopped
        await super().shutdown(sockets)

    def _drain(self) -> None:
        """Let no new client in and end once all are answered; requests that take too long get an error."""
        self.should_exit = True
        asyncio.get_running_loop().call_later(self._service.settings.drain_seconds, self._service.abandon)


def exit_now(code: int) -> NoReturn:
    """End the process without waiting for any thread."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
