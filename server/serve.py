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
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import cast
from wsgiref.simple_server import WSGIServer

import uvicorn
from fastapi import FastAPI
from prometheus_client import start_http_server

from .app import create_app
from .logs import configure_logs
from .service import Service
from .settings import Settings

logger = logging.getLogger("milkweed.serve")

BACKLOG = 2048

# The server waits this much longer than the service, so that the service has the last word to each client.
DRAIN_MARGIN_SECONDS = 2

# After the listener is closed, connections that are open may still bring a request for so long.
LAST_REQUEST_SECONDS = 1.0


class PortError(OSError):
    """A port that cannot be listened on; the message is one line."""


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
    with _listen(settings.host, settings.port) as listener:
        return _Run(settings, bundles, listener).run()


def _listen(host: str, port: int) -> socket.socket:
    """A bound, not yet accepting socket.

    Raises:
        PortError: names the address and what is wrong with it.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise PortError(f"cannot listen on {host} port {port}: {_reason(error)}") from None


def _reason(error: OSError) -> str:
    """The system's words for an error; socket.create_server adds its own, getaddrinfo has its own numbers."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


class _Run:
    """One run of the server, from sockets to exit code."""

    def __init__(self, settings: Settings, bundles: Mapping[str, Path], listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._failed = False
        self._grace_seconds = 0.0
        self.app: FastAPI = create_app(settings, bundles, on_prepared=self._prepared)
        self.service: Service = self.app.state.service
        self._server = _Server(self._config(), self)

    def run(self) -> int:
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
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def _config(self) -> uvicorn.Config:
        settings = self._settings
        return uvicorn.Config(
            self.app,
            loop="uvloop",
            http="httptools",
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
        except OSError as error:
            raise PortError(
                f"cannot listen on {settings.host} metrics port {settings.metrics_port}: "
                f"{_reason(error)} (--metrics-port 0 turns it off)"
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
                f"milkweed serves {model.name} ({model.config.arch}, version {model.config.version}) "
                f"on {self.url} | device {model.pipeline.device}, {model.pipeline.plan} | "
                f"loader {model.loader} | dtype {model.dtype} | kernels {model.kernels}"
            )
            print(line, flush=True)

    @property
    def last_request_seconds(self) -> float:
        """How long connections stay open for a request on its way, once nobody can connect any more."""
        return min(LAST_REQUEST_SECONDS, self._grace_seconds)

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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let nobody connect any more, answer who already has, then close what is idle."""
        connected = [peer for listener in sockets or [] for peer in _accept_all(listener)]
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for peer in connected:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, peer)
        # A request may be on its way in every open connection; closing now would reset it.
        end = time.monotonic() + self._run.last_request_seconds
        while self.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self._run.service.stop_accepting()
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


def _accept_all(listener: socket.socket) -> list[socket.socket]:
    """The connections that wait to be accepted; closing the listener would reset them."""
    listener.setblocking(False)
    listener.listen(0)  # from here on the kernel takes hardly anybody in: who comes between now and the close is reset
    accepted = []
    with contextlib.suppress(BlockingIOError):
        while True:
            accepted.append(listener.accept()[0])
    return accepted


def _exit_now(code: int) -> None:
    """End the process without waiting for any thread."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
