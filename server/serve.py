"""Runs the service as a process: sockets, signals, the metrics port, and an end that loses nothing."""

import asyncio
import contextlib
import faulthandler
import functools
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, cast
from wsgiref.simple_server import WSGIServer

import uvicorn
from fastapi import FastAPI
from prometheus_client import start_http_server

from .admin_server import AdminServer
from .app import create_app
from .listener import BACKLOG, PortError, accept_all, allow_files, listen, reason_of
from .logs import configure_logs
from .oip.grpc_server import GrpcError, GrpcServer
from .probe_port import WsgiApp, with_probes
from .security.connection import Connection
from .security.connections import Connections
from .security.tls import Tls
from .service import Service
from .settings import Settings

logger = logging.getLogger("milkweed.serve")

# The server waits this much longer than the service, so that the service has the last word to each client.
DRAIN_MARGIN_SECONDS = 2

# After the listener is closed, connections that are open may still bring a request for so long.
LAST_REQUEST_SECONDS = 1.0


def run_server(settings: Settings, bundles: Mapping[str, Path]) -> int:
    """Serve until SIGTERM or SIGINT; the process's exit code.

    Args:
        bundles: where each served model lies, by name; the first one is the default.

    Returns:
        0 after a clean end; 1 when a model cannot be loaded, after one line that says why, or when the engine did
        not end.

    Raises:
        PortError: a port is in use or not ours to take.
    """
    configure_logs(settings.log_level)
    with contextlib.suppress(OSError, ValueError):  # stderr may be no file
        faulthandler.enable()  # a crash of a native library says at least in which thread and call
    with listen(settings.host, settings.port) as listener:
        return _Run(settings, bundles, listener).run()


def _grpc_server(settings: Settings, app: FastAPI) -> GrpcServer | None:
    """The gRPC half, not yet started; None where it is off.

    Raises:
        PortError: its port is not to be had.
        GrpcError: it cannot be served.
    """
    if not settings.grpc_port:
        return None
    server = GrpcServer(app.state.service, app.state.gate, app.state.tracer)
    # gRPC binds once the event loop runs; what is wrong with the port is told before the models are loaded.
    listen(settings.host, settings.grpc_port).close()
    return server


class _Run:
    """One run of the server, from sockets to exit code."""

    def __init__(self, settings: Settings, bundles: Mapping[str, Path], listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._failed = False
        self._grace_seconds = 0.0
        self.app: FastAPI = create_app(settings, bundles, on_prepared=self._prepared, on_ended=self._engine_ended)
        self.service: Service = self.app.state.service
        self.tls = Tls.of(settings, self.app.state.watch)
        self.connections = Connections(settings, self.service.metrics)
        self._grpc = _grpc_server(settings, self.app)
        self._admin = AdminServer(settings, self.service, self.app.state.gate) if settings.admin_port else None
        self._server = _Server(self._config(), self)

    def run(self) -> int:
        allow_files(self._settings.max_connections)
        metrics_server = self._serve_metrics()
        logger.info("listening", extra={"event": {"url": self.url, "pid": os.getpid()}})
        try:
            self._server.run(sockets=[self._listener])
        finally:
            gc.unfreeze()
            if metrics_server is not None:
                metrics_server.shutdown()
                metrics_server.server_close()
        if not self.app.state.stopped_clean:
            logger.error("the engine did not end within %s s", self._settings.drain_seconds)
            _exit_now(1)  # its threads would keep the interpreter from ending
        return 1 if self._failed else 0

    @property
    def url(self) -> str:
        """Where the service answers."""
        host, port = self._listener.getsockname()[:2]
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def tls_options(self) -> dict[str, Any]:
        """What an event loop is told to speak TLS; a handshake may take as long as a request's headers."""
        if self.tls is None:
            return {}
        return {"ssl": self.tls, "ssl_handshake_timeout": self._settings.header_timeout_ms / 1e3}

    def _config(self) -> uvicorn.Config:
        settings = self._settings
        return uvicorn.Config(
            self.app,
            loop="uvloop",
            http=cast(type[asyncio.Protocol], functools.partial(Connection, self.connections)),
            ws="none",
            lifespan="on",
            access_log=False,
            proxy_headers=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=settings.keep_alive_seconds,
            timeout_graceful_shutdown=int(settings.drain_seconds) + DRAIN_MARGIN_SECONDS,
        )

    def _serve_metrics(self) -> WSGIServer | None:
        """/metrics on its own port and thread: a scrape gets through when the event loop does not."""
        settings = self._settings
        if not settings.metrics_port:
            return None
        try:
            server, _ = start_http_server(settings.metrics_port, settings.host, registry=self.service.metrics.registry)
            server.set_app(with_probes(cast(WsgiApp, server.get_app()), self.service))
        except OSError as error:
            raise PortError(
                f"cannot listen on {settings.host} metrics port {settings.metrics_port}: "
                f"{reason_of(error)} (--metrics-port 0 turns it off)"
            ) from None
        return server

    def _prepared(self, error: BaseException | None) -> None:
        """The models are warm, or never will be."""
        if error is not None:
            self._failed = True
            if isinstance(error, ValueError | OSError):
                print(f"milkweed: error: {error}", file=sys.stderr, flush=True)
            else:
                logger.error("the models could not be loaded", exc_info=error)
            self._server.should_exit = True
            return
        # What is loaded now stays: the collector need not walk it again and again (0.1 ms of each request).
        gc.collect()
        gc.freeze()
        for model in self.service.models.values():
            line = (
                f"milkweed serves {model.name} ({model.config.arch}, version {model.version}) "
                f"on {self.url} | device {model.pipeline.device}, {model.pipeline.plan} | "
                f"loader {model.loader} | dtype {model.dtype} | kernels {model.kernels}"
            )
            print(line, flush=True)

    def _engine_ended(self) -> None:
        """Whoever waited has been told; what starts processes shall start this one again."""
        logger.error("the engine has ended: the process ends with 1")
        self._failed = True
        self._server.should_exit = True

    @property
    def last_request_seconds(self) -> float:
        """How long connections stay open for a request on its way, once nobody can connect any more."""
        return min(LAST_REQUEST_SECONDS, self._grace_seconds)

    async def start_others(self) -> None:
        """Open the other ports, if there shall be any; without the gRPC port the process does not go on."""
        if self._admin is not None:
            self._admin.begin()
        if self._grpc is None:
            return
        try:
            await self._grpc.start()
        except GrpcError as error:
            self._failed = True
            print(f"milkweed: error: {error}", file=sys.stderr, flush=True)
            asyncio.get_running_loop().call_soon(self._drain)  # once uvicorn has begun, so that it also ends

    async def stop_others(self) -> None:
        """Take nothing new there; gRPC calls in flight have as long as requests over HTTP."""
        if self._admin is not None:
            await self._admin.end()
        if self._grpc is not None:
            await self._grpc.stop(self._settings.drain_seconds + DRAIN_MARGIN_SECONDS)

    def stop(self, signal_number: int) -> None:
        """First signal: say not ready, wait a moment, then drain. A person at a terminal need not wait."""
        grace = 0.0 if signal_number == signal.SIGINT else self._settings.drain_grace_seconds
        self._grace_seconds = grace
        logger.info("stopping", extra={"event": {"signal": signal.Signals(signal_number).name, "grace": grace}})
        self.service.begin_drain()
        asyncio.get_running_loop().call_later(grace, self._drain)

    def _drain(self) -> None:
        self._server.should_exit = True
        asyncio.get_running_loop().call_later(self._settings.drain_seconds, self.service.abandon)


class _Server(uvicorn.Server):
    """uvicorn with our signals: its own closes the listener at once and ends by the signal, not with 0."""

    def __init__(self, config: uvicorn.Config, run: _Run) -> None:
        super().__init__(config)
        self._run = run
        self._signalled = False

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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's own for sockets that are there, with a limit to the time of a TLS handshake."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(uvicorn.config.STARTUP_FAILURE)
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(self._protocol, sock=listener, backlog=BACKLOG, **self._run.tls_options)
            for listener in sockets or []
        ]
        self.started = True
        await self._run.start_others()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let nobody connect any more, answer who already has, then close what is idle."""
        others_stopped = asyncio.create_task(self._run.stop_others())
        connected = [peer for listener in sockets or [] for peer in accept_all(listener)]
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for peer in connected:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, peer, **self._run.tls_options)
        # A request may be on its way in every open connection; closing now would reset it.
        end = time.monotonic() + self._run.last_request_seconds
        while self.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self._run.service.stop_accepting()
        await others_stopped
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        """What uvicorn makes for a connection that it accepts itself."""
        make = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops gently, the second at once."""
        if self._signalled:
            logger.warning("second signal: ending at once")
            _exit_now(128 + sig)
        self._signalled = True
        self._run.stop(sig)


def _exit_now(code: int) -> None:
    """End the process without waiting for any thread."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
