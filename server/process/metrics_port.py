"""The metrics port: /metrics, and the probes for whoever has no client certificate, on threads of its own.

It is for few clients and gets through when the event loop does not. So it is none of asyncio, and it can be had by
anybody who reaches it: what a client may cost here has limits of its own.
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

from ..errors import ServiceError
from ..service.service import Service

logger = logging.getLogger("milkweed.metrics")

# So many connections, each with a thread; a new one takes the place of the oldest whose request is not there yet.
MOST_CONNECTIONS = 32

# For so long a connection may be open, whatever it does.
CONNECTION_SECONDS = 10.0

# How often that is looked at, and for how long the end of the port may have to wait.
POLL_SECONDS = 0.2

# For so long a new connection waits until the one that makes room for it is gone.
ROOM_SECONDS = 1.0

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class MetricsPort(WSGIServer):
    """Serves from `start` to `stop`.

    Args:
        listener: the socket to accept from; `stop` closes it.
        registry: what /metrics shows.
    """

    def __init__(self, listener: socket.socket, service: Service, registry: CollectorRegistry) -> None:
        super().__init__(listener.getsockname()[:2], _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = listener.getsockname()[:2]
        self.setup_environ()
        self.set_app(with_probes(make_wsgi_app(registry), service))
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        # Since when each is open. Told by who runs them and by this port's own thread.
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
        """Accept nobody any more; what is being answered ends with the process."""
        self.shutdown()
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """socketserver's: accept. Where no file can be had it is asked again, but not at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(POLL_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """socketserver's: give a connection a thread, when there is room."""
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
        """socketserver's, after each poll: end what has been open for too long."""
        begun = time.monotonic() - CONNECTION_SECONDS
        with self._lock:
            for request, since in (*self._asking.items(), *self._answered.items()):
                if since < begun:
                    _cut(request)

    def answering(self, request: socket.socket) -> None:
        """A request is there."""
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
        with self._lock:  # or the number of the file could be another one's when it is cut
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
        """A line a request is how one client fills a disk."""


def _cut(request: socket.socket) -> None:
    """End a connection from another thread than the one that reads or writes it, which then hears of it."""
    with contextlib.suppress(OSError):  # the client was first
        request.shutdown(socket.SHUT_RDWR)


def with_probes(metrics: WsgiApp, service: Service) -> WsgiApp:
    """`metrics`, and /livez and /readyz before it; the service is only read."""
    checks = {"/livez": service.check_alive, "/readyz": service.check_ready}

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        check = checks.get(environ.get("PATH_INFO", ""))
        if check is None:
            return metrics(environ, start_response)
        status, text = HTTPStatus.OK, "ok"
        try:
            check()
        except ServiceError as error:
            status, text = HTTPStatus.SERVICE_UNAVAILABLE, error.message
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode() + b"\n"]

    return app
