"""Runs the service as a process: sockets, signals, the metrics port, and an end that loses nothing."""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from fastapi import FastAPI

from ..config.settings import Settings
from ..http.transport.sockets import allow_files, listen, url_of
from ..oip.grpc_server import GrpcError
from ..security.tls import Tls
from ..service.service import Service
from ..telemetry.logs import configure_logs
from .http_server import HttpServer
from .service_app import create_app
from .side_ports import SidePorts

logger = logging.getLogger("milkweed.serve")

# How long a thread may go on running Python while others wait to; CPython's own 5 ms are as long as a whole request.
# Whenever one thread is busy for long (a large body or answer), each step of all others began with such a wait.
SWITCH_SECONDS = 0.001


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
    sys.setswitchinterval(SWITCH_SECONDS)
    with contextlib.suppress(OSError, ValueError):  # stderr may be no file
        faulthandler.enable()  # a crash of a native library says at least in which thread and call
    with listen(settings.host, settings.port) as listener:
        return _Run(settings, bundles, listener).run()


class _Run:
    """One run of the server, from sockets to exit code."""

    def __init__(self, settings: Settings, bundles: Mapping[str, Path], listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._failed = False
        self.grace_seconds = 0.0
        self._signalled = False
        self.app: FastAPI = create_app(settings, bundles, on_prepared=self._prepared, on_ended=self._engine_ended)
        self.service: Service = self.app.state.service
        self.tls = Tls.of(settings, self.app.state.watch)
        state = self.app.state
        self._beside = SidePorts(self.service, state.gate, state.tracer, self.service.metrics.registry, self.tls)
        self._server = HttpServer(
            self.app, self.service, self, most=allow_files(settings.max_connections), tls=self.tls
        )

    def run(self) -> int:
        self._beside.open_metrics()
        logger.info("listening", extra={"event": {"url": self.url, "pid": os.getpid()}})
        try:
            self._server.run(sockets=[self._listener])
        finally:
            gc.unfreeze()
            self._beside.close_metrics()
        if not self.app.state.stopped_clean:
            logger.error("the engine did not end within %s s", self._settings.drain_seconds)
            exit_now(1)  # its threads would keep the interpreter from ending
        return 1 if self._failed else 0

    @property
    def url(self) -> str:
        """Where the service answers."""
        return url_of(self._listener, self.tls is not None)

    def _prepared(self, error: BaseException | None) -> None:
        """The models are warm, or never will be."""
        if self._signalled:  # nobody is served any more, and the port is closed; Ctrl-C may have failed the load, too
            return
        if error is not None:
            self._failed = True
            log_failure(error)
            self._server.should_exit = True
            return
        log_models(self.service, self.url)

    def _engine_ended(self) -> None:
        """Whoever waited has been told; what starts processes shall start this one again."""
        logger.error("the engine has ended: the process ends with 1")
        self._failed = True
        self._server.should_exit = True

    async def begun(self) -> None:
        """Open the other ports, if there shall be any; without the gRPC port the process does not go on."""
        try:
            await self._beside.begin()
        except GrpcError as error:
            self._failed = True
            print(f"milkweed: error: {error}", file=sys.stderr, flush=True)
            asyncio.get_running_loop().call_soon(self._server.drain)  # once uvicorn has begun, so that it also ends

    async def ending(self) -> None:
        """Take nothing new there; gRPC calls in flight have as long as requests over HTTP."""
        await self._beside.end()

    def signalled(self, signal_number: int) -> None:
        """First signal: say not ready, wait a moment, then drain; a person at a terminal need not wait. Second: end."""
        if self._signalled:
            logger.warning("second signal: ending at once")
            exit_now(128 + signal_number)
        self._signalled = True
        grace = 0.0 if signal_number == signal.SIGINT else self._settings.drain_grace_seconds
        self.grace_seconds = grace
        logger.info("stopping", extra={"event": {"signal": signal.Signals(signal_number).name, "grace": grace}})
        self.service.begin_drain()
        asyncio.get_running_loop().call_later(grace, self._server.drain)


def log_failure(error: BaseException) -> None:
    """Why the models could not be loaded: a line where it is the user's to mend, else the log has it all."""
    if isinstance(error, ValueError | OSError):
        print(f"milkweed: error: {error}", file=sys.stderr, flush=True)
    else:
        logger.error("the models could not be loaded", exc_info=error)


def log_models(service: Service, url: str) -> None:
    """The models are warm: tell the person at the terminal, and the garbage collector."""
    # What is loaded now stays: the collector need not walk it again and again (0.1 ms of each request).
    gc.collect()
    gc.freeze()
    for model in service.models.values():
        line = (
            f"milkweed serves {model.name} ({model.config.arch}, version {model.version}) "
            f"on {url} | device {model.device}, {model.pipeline.plan} | "
            f"loader {model.loader} | dtype {model.dtype} | kernels {model.kernels}"
        )
        print(line, flush=True)


def exit_now(code: int) -> NoReturn:
    """End the process without waiting for any thread."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
