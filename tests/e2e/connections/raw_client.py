"""Bytes on a connection to a server of little patience, as no HTTP library sends them, and what comes back."""

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx

from ...support.server_parts import encoded
from ...support.waiting import HANG_SECONDS

HEADER_MS = BODY_MS = 400
MAX_CONNECTIONS = 40

# What a server of little patience is given.
LITTLE_PATIENCE = {
    "header_timeout_ms": HEADER_MS,
    "body_timeout_ms": BODY_MS,
    "body_min_bytes_per_second": 1_000_000,
    "max_connections": MAX_CONNECTIONS,
    "max_header_bytes": 16_384,
    "keep_alive_seconds": 30,
}


IMAGE = encoded("JPEG", size=(40, 40))
HEAD = b"POST /classify HTTP/1.1\r\nHost: x\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(IMAGE) + IMAGE


def dial(url: str, tls: ssl.SSLContext | None = None) -> socket.socket:
    """A connection to the port of a URL."""
    address = urlsplit(url)
    plain = socket.create_connection((address.hostname, address.port), timeout=HANG_SECONDS)
    return plain if tls is None else tls.wrap_socket(plain, server_hostname=address.hostname)


def read_end(client: socket.socket) -> bytes:
    """All that the server sends until it closes."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while chunk := client.recv(65_536):
            received += chunk
    return received


def statuses(received: bytes) -> list[int]:
    """The status of each answer in a stream of answers."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        found.append(int(lines[0].split()[1]))
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        received = rest[length:]
    return found


def code_of(received: bytes) -> tuple[int, str]:
    """Status and code of the one error there is."""
    return statuses(received)[0], json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"]


def error_of(received: bytes) -> tuple[int, str]:
    """The same of an error of the service's port: it has the shape of all of them, and says that it closes."""
    head, _, body = received.partition(b"\r\n\r\n")
    document = json.loads(body)
    assert document["request_id"]
    assert b"connection: close" in head.lower()
    assert b"x-content-type-options: nosniff" in head.lower()
    assert "\n" not in document["error"]["message"]
    return code_of(received)


def check_others(server: Any) -> None:
    """A new client is served as ever."""
    assert httpx.post(server.url + "/classify", content=IMAGE).status_code == 200
    assert httpx.get(server.url + "/livez").status_code == 200


class Trickle(threading.Thread):
    """Sends a byte whenever it may, until the connection breaks."""

    def __init__(self, client: socket.socket, byte: bytes, pause: float) -> None:
        super().__init__(daemon=True)
        self.client, self.byte, self.pause = client, byte, pause
        self.stop = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while not self.stop.wait(self.pause):
                self.client.sendall(self.byte)


@contextlib.contextmanager
def trickling(client: socket.socket, byte: bytes, pause: float = 0.05) -> Iterator[None]:
    trickle = Trickle(client, byte, pause)
    trickle.start()
    try:
        yield
    finally:
        trickle.stop.set()
        trickle.join()
