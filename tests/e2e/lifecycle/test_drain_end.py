"""The end of the time to drain: whoever still sends gets an answer in our shape, not uvicorn's 500."""

import contextlib
import json
import socket
from typing import Any


def test_a_body_that_never_ends_gets_503_when_the_time_to_drain_is_over(serving: Any) -> None:
    with serving(drain_seconds=0.2, drain_grace_seconds=0) as server:
        host, port = server.wait_ready().removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nbegin")
            while server.metric('milkweed_http_requests_in_flight{route="/classify"}') < 1:
                pass
            server.terminate()
            received = b""
            with contextlib.suppress(ConnectionError):
                while chunk := client.recv(65_536):
                    received += chunk
        assert server.exit() == 0
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in head.lower()
    assert json.loads(body)["error"]["code"] == "draining"
    assert not [line for line in server.log if "Traceback" in line]
