"""Serves /metrics and the probes on a port and threads of its own, without TLS or keys.

It has few clients and must answer when the event loop hangs, so it does not use asyncio. Anybody who reaches the port
is served: what a client may cost here has limits of its own.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from ..errors import ServiceError, did_you_mean
from ..service.service import Checks

logger = logging.getLogger("milkweed.metrics")

# There may be so many connections, each with a thread; beyond it a new one takes the place of the oldest whose request
# is not there yet.
MOST_CONNECTIONS = 32

# A connection may be open for so long, whatever it does.
CONNECTION_SECONDS = 10.0

# The time of connections is checked so often; the end of the port may take as long.
POLL_SECONDS = 0.2

# A new connection waits for so long until the one that it displaces is gone.
ROOM_SECONDS = 1.0

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class MetricsPort(WSGIServer):
    """Serves from `start` to `stop`. `listener`: the socket to accept from; `stop` closes it."""

    def __init__(self, listener: socket.socket, registry: CollectorRegistry, checks: Checks) -> None:
        super().__init__(listener.getsockname()[:2], _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = listener.getsockname()[:2]
        self.setup_environ()
        self.set_app(with_head(with_probes(make_wsgi_app(registry), checks)))
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        # When each was opened. Written by the threads of the connections and by the port's own.
        self._asking: dict[socket.socket, float] = {}
        self._answered: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self.serve_forever, args=(POLL_SECONDS,), name="milkweed-metrics", daemon=True
        )

    def start(self) -> None:
        """Accept from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Accept no more connections; requests being answered end with the process."""
        self.shutdown()
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection, for socketserver; after a failure, such as too few files, it asks again in a moment."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(POLL_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread when there is room, for socketserver."""
        if not self._room.acquire(blocking=False):
            with self._lock:
                oldest = next(iter(self._asking or self._answered), None)
                if oldest is not None:
                    _cut(oldest)
            if not self._room.acquire(timeout=ROOM_SECONDS):
                self.shutdown_request(request)
                return
        with self._lock:
            self._asking[request] = time.monotonic()
        try:
            threading.Thread(target=self._serve, args=(request, client_address), daemon=True).start()
        except RuntimeError:  # no thread can be had
            self._done(request)

    def service_actions(self) -> None:
        """End connections that have been open for too long; socketserver calls this after each poll."""
        begun = time.monotonic() - CONNECTION_SECONDS
        with self._lock:
            for request, since in (*self._asking.items(), *self._answered.items()):
                if since < begun:
                    _cut(request)

    def answering(self, request: socket.socket) -> None:
        """The request of a connection has come."""
        with self._lock:
            self._answered[request] = self._asking.pop(request)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the client has gone, or we have cut it off
        except Exception:
            logger.exception("a request to the metrics port failed")
        finally:
            self._done(request)

    def _done(self, request: socket.socket) -> None:
        with self._lock:  # or another file could have its number when it is cut
            self._asking.pop(request, None)
            self._answered.pop(request, None)
            self.shutdown_request(request)
        self._room.release()


class _Request(WSGIRequestHandler):
    server: MetricsPort

    def get_environ(self) -> dict[str, Any]:
        self.server.answering(self.request)
        return super().get_environ()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: with a line a request one client could fill a disk."""


def _cut(request: socket.socket) -> None:
    """End a connection from another thread; the one that reads or writes it gets an error."""
    with contextlib.suppress(OSError):  # the client was first
        request.shutdown(socket.SHUT_RDWR)


def with_probes(metrics: WsgiApp, checks: Checks) -> WsgiApp:
    """Put the checks, /livez and /readyz, before the app of /metrics, also at /."""
    there = (*(f"/{name}" for name in checks), "/metrics")

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO", "").rstrip("/"), environ["REQUEST_METHOD"]
        status, text = HTTPStatus.OK, "ok"
        if path and path not in there:
            status, text = HTTPStatus.NOT_FOUND, f"there are: {', '.join(there)}{did_you_mean(path, there)}"
        elif method != "GET":
            status, text = HTTPStatus.OK if method == "OPTIONS" else HTTPStatus.METHOD_NOT_ALLOWED, "see Allow"
        elif path == "/metrics" or not path:
            return metrics(environ, start_response)
        else:
            try:
                checks[path[1:]]()
            except ServiceError as error:
                status, text = HTTPStatus.SERVICE_UNAVAILABLE, error.message
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Allow", "GET, HEAD, OPTIONS")]
        start_response(f"{status.value} {status.phrase}", headers)
        return [text.encode() + b"\n"]

    return app


def with_head(app: WsgiApp) -> WsgiApp:
    """Answer HEAD as GET, without the body."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "HEAD":
            return app(environ, start_response)
        head: list[Any] = []
        body = b"".join(app({**environ, "REQUEST_METHOD": "GET"}, lambda *said: head.extend(said)))
        start_response(head[0], [*head[1], ("Content-Length", str(len(body)))])
        return []

    return answer
