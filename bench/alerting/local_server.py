"""A small HTTP server on this machine: where Alertmanager tells its alerts, and what stands for an exporter."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


class LocalServer:
    """Answers on a free port of 127.0.0.1, on threads of its own: `with LocalServer(answer) as server:`.

    Args:
        answer: makes the text of an answer from the body of a request, which is empty for GET.
    """

    def __init__(self, answer: Callable[[bytes], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(b"")

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

            def _answer(self, body: bytes) -> None:
                text = answer(body).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="local-server", daemon=True)

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "LocalServer":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
