"""A collector that speaks OTLP over HTTP, and keeps what it gets."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ...support.waiting import HANG_SECONDS


class Collector(ThreadingHTTPServer):
    """`spans` of all that was posted, `resources` beside them; `hang` holds every answer back while it is set."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.let_go = threading.Event()
        self.let_go.set()
        self.reached = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.reached.set()
        assert self.server.let_go.wait(HANG_SECONDS)
        self.server.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.server.resources.append(attributes(resource.resource.attributes))
            self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def attributes(pairs: Any) -> dict[str, Any]:
    """The attributes of a span or a resource by name."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in pairs}


@pytest.fixture(autouse=True)
def exporters_end() -> Iterator[None]:
    """A test leaves no thread that still exports, and whose spans another test would find."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(("OtelBatch", "milkweed-traces")):
            thread.join(HANG_SECONDS)
            assert not thread.is_alive()


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.let_go.set()
        server.shutdown()
        thread.join()
        server.server_close()
