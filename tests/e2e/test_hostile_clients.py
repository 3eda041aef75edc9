"""Clients that are slow, greedy or mad: each is answered clearly or cut off, and others never notice."""

import contextlib
import io
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

HEADER_MS = BODY_MS = 400
MAX_CONNECTIONS = 40


@pytest.fixture(scope="module")
def small(serving: Any) -> Iterator[Any]:
    """A server with little patience."""
    with serving(
        header_timeout_ms=HEADER_MS,
        body_timeout_ms=BODY_MS,
        body_min_bytes_per_second=1_000_000,
        max_connections=MAX_CONNECTIONS,
        max_header_bytes=16_384,
        keep_alive_seconds=30,
    ) as server:
        server.wait_ready()
        yield server


def jpeg() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 40), "teal").save(out, "JPEG")
    return out.getvalue()


IMAGE = jpeg()
HEAD = b"POST /classify HTTP/1.1\r\nHost: x\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(IMAGE) + IMAGE


def dial(server: Any) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


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


def error_of(received: bytes) -> tuple[int, str]:
    """Status and code of the one answer there is; it has the shape of all our errors, and says it closes."""
    head, _, body = received.partition(b"\r\n\r\n")
    document = json.loads(body)
    assert document["request_id"]
    assert b"connection: close" in head.lower()
    assert b"x-content-type-options: nosniff" in head.lower()
    assert "\n" not in document["error"]["message"]
    return statuses(received)[0], document["error"]["code"]


def check_others(server: Any) -> None:
    """A new client is served as ever."""
    assert httpx.post(server.url + "/classify", content=IMAGE, timeout=20).status_code == 200
    assert httpx.get(server.url + "/livez", timeout=20).status_code == 200


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


def test_headers_that_trickle_are_408(small: Any) -> None:
    with dial(small) as client:
        client.sendall(HEAD + b"X-Slow: ")
        with trickling(client, b"a"):
            check_others(small)
            assert error_of(read_end(client)) == (408, "request_timeout")


def test_a_body_that_trickles_is_408(small: Any) -> None:
    before = small.metric('milkweed_requests_rejected_total{reason="request_timeout"}')
    with dial(small) as client:
        client.sendall(HEAD + b"Content-Length: 5000\r\n\r\n")
        with trickling(client, b"a"):
            check_others(small)
            assert error_of(read_end(client)) == (408, "request_timeout")
    assert small.metric('milkweed_requests_rejected_total{reason="request_timeout"}') == before + 1


def test_a_chunked_body_that_trickles_is_408(small: Any) -> None:
    with dial(small) as client:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        with trickling(client, b"1\r\na\r\n"):
            assert error_of(read_end(client)) == (408, "request_timeout")


def test_a_slow_body_that_is_quick_enough_is_served(small: Any) -> None:
    """Beyond the time for a body, but with more bytes a second than is asked for."""
    body = IMAGE + bytes(3 << 20)
    piece = len(body) // 12
    with dial(small) as client:
        client.sendall(HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body))
        never = threading.Event()
        for start in range(0, len(body), piece):
            never.wait(BODY_MS / 1e3 / 8)
            client.sendall(body[start : start + piece])
        assert statuses(read_end(client)) == [200]


def test_a_content_length_that_is_too_long_is_408(small: Any) -> None:
    with dial(small) as client:
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (len(IMAGE) + 10) + IMAGE)
        assert error_of(read_end(client)) == (408, "request_timeout")


def test_a_content_length_that_is_too_short_ends_the_connection(small: Any) -> None:
    with dial(small) as client:
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (len(IMAGE) - 10) + IMAGE)
        # The answer to what was announced; the rest is no request.
        assert set(statuses(read_end(client))) <= {200, 400, 422}


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Transfer-Encoding: chunked\r\n", b"zz\r\nabc\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"-1\r\na\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"ffffffffffffffffff\r\na\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"3\r\nabcdef\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"3\nabc\n0\n\n"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n"),
        (b"Transfer-Encoding: gzip, chunked, identity\r\n", b"0\r\n\r\n"),
        (b"Content-Length: 5\r\nContent-Length: 6\r\n", b"abcdef"),
        (b"Content-Length: -5\r\n", b"abcdef"),
        (b"Content-Length: +5\r\n", b"abcdef"),
        (b"Content-Length: 99999999999999999999999\r\n", b"abcdef"),
        (b"X : y\r\n", b""),
        (b"X\r\n", b""),
        (b"X: a\x00b\r\n", b""),
        (b" folded: y\r\n", b""),
        (b"X: y\nContent-Length: 0\n", b""),
    ],
)
def test_lies_about_the_body_are_400(small: Any, head: bytes, body: bytes) -> None:
    with dial(small) as client:
        client.sendall(HEAD + head + b"\r\n" + body)
        assert error_of(read_end(client)) == (400, "bad_request")
    check_others(small)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # a TLS hello
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1 GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"get / http/1.1\r\n\r\n",
        b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_what_is_no_request_is_400(small: Any, data: bytes) -> None:
    with dial(small) as client:
        client.sendall(data)
        assert error_of(read_end(client)) == (400, "bad_request")


@pytest.mark.parametrize(
    "target", [b"*", b"//", b"/%00%0a%ff", b"/../../etc/passwd", b"http://elsewhere/x", b"/" + b"a" * 9000]
)
def test_any_target_is_answered(small: Any, target: bytes) -> None:
    with dial(small) as client:
        client.sendall(b"OPTIONS %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % target)
        assert error_of(read_end(client)) == (404, "not_found")


@pytest.mark.parametrize("host", [b"[", b"]", b"a b", b"%", b"x:99999", b"\xff", b"<script>", b""])
@pytest.mark.parametrize("path", [b"/", b"/nowhere", b"/docs", b"/livez"])
def test_any_host_is_answered(small: Any, host: bytes, path: bytes) -> None:
    with dial(small) as client:
        client.sendall(b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (path, host))
        received = read_end(client)
    assert statuses(received) == [404 if path == b"/nowhere" else 200]
    assert b"<script" not in received


def test_a_hundred_thousand_headers_are_431(small: Any) -> None:
    with dial(small) as client, contextlib.suppress(ConnectionError):
        client.sendall(HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(100_000)) + b"\r\n")
        assert error_of(read_end(client)) == (431, "headers_too_large")
    check_others(small)


@pytest.mark.parametrize("start", [HEAD + b"X: ", b"GET /", b"GET /?a="])
def test_a_huge_header_or_target_is_431(small: Any, start: bytes) -> None:
    before = small.metric('milkweed_http_connections_closed_total{reason="too_large"}')
    with dial(small) as client:
        with contextlib.suppress(ConnectionError):
            for data in (start, *[b"a" * 65_536] * 32):
                client.sendall(data)
        assert error_of(read_end(client)) == (431, "headers_too_large")
    assert small.metric('milkweed_http_connections_closed_total{reason="too_large"}') == before + 1


def test_as_many_headers_as_may_be_are_served(small: Any) -> None:
    with dial(small) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(99)))
        client.sendall(b"Connection: close\r\n\r\n")
        assert statuses(read_end(client)) == [200]


def test_trailers_are_no_headers(small: Any) -> None:
    """Whoever checks headers before us does not check them."""
    body = b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(IMAGE), IMAGE)
    with dial(small) as client:
        client.sendall(HEAD + body + b"X-Request-ID: smuggled\r\nX-Request-Timeout-Ms: 0\r\n\r\n")
        received = read_end(client)
    assert statuses(received) == [200]
    assert b"smuggled" not in received


def test_endless_trailers_are_refused(small: Any) -> None:
    body = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(IMAGE), IMAGE)
    with dial(small) as client:
        client.sendall(HEAD + body + b"a: b\r\n" * 1000 + b"\r\n")
        assert error_of(read_end(client)) == (431, "headers_too_large")


def test_pipelined_requests_are_answered_in_order(small: Any) -> None:
    last = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with dial(small) as client:
        client.sendall(WHOLE * 3 + b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n" + WHOLE + last)
        assert statuses(read_end(client)) == [200, 200, 200, 404, 200, 200]


def test_a_flood_of_pipelined_requests_is_cut(small: Any) -> None:
    with dial(small) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 5000)
        received = read_end(client)
    assert 0 < len(statuses(received)) < 100
    assert set(statuses(received)) == {200}
    check_others(small)


def test_garbage_behind_a_request_does_not_take_its_answer(small: Any) -> None:
    with dial(small) as client:
        client.sendall(WHOLE + b"\x00\x01garbage\r\n\r\n")
        assert statuses(read_end(client))[0] == 200


def test_a_request_for_another_protocol_is_answered_in_this_one(small: Any) -> None:
    get = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
    with dial(small) as client:
        client.sendall(get)
        received = read_end(client)
    assert statuses(received) == [200]
    assert b"connection: close" in received.lower()
    with dial(small) as client:
        client.sendall(HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + WHOLE.removeprefix(HEAD))
        received = read_end(client)
    assert error_of(received) == (400, "bad_request")
    assert b"without Upgrade" in received


def test_blank_lines_keep_no_connection(small: Any) -> None:
    with dial(small) as client:
        client.sendall(WHOLE)
        with trickling(client, b"\r\n"):
            assert statuses(read_end(client)) == [200]


def test_silence_is_patiently_borne_and_makes_room(small: Any) -> None:
    """More connections than there may be: whoever was silent for longest goes, whoever asks is answered."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(dial(small)) for _ in range(MAX_CONNECTIONS)]
        check_others(small)
        assert read_end(silent[0]) == b""  # the first one made room
        silent[-1].sendall(WHOLE.replace(b"Host: x", b"Connection: close"))
        assert statuses(read_end(silent[-1])) == [200]
    assert small.metric('milkweed_http_connections_closed_total{reason="evicted"}') > 0


def test_slow_headers_on_all_connections_keep_nobody_out(small: Any) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            stack.enter_context(dial(small)).sendall(HEAD + b"X-Slow: ")
        check_others(small)


def test_when_all_are_being_answered_a_new_one_is_503(small: Any) -> None:
    with contextlib.ExitStack() as stack:
        busy = [stack.enter_context(dial(small)) for _ in range(MAX_CONNECTIONS)]
        for client in busy:
            client.sendall(HEAD + b"Content-Length: 9000000\r\n\r\n" + bytes(1_000_000))
        late = stack.enter_context(dial(small))
        received = read_end(late)
        assert received == b"" or error_of(received) == (503, "overloaded")
        for client in busy:
            assert set(statuses(read_end(client))) <= {408}
    check_others(small)


def test_no_line_was_logged_for_any_of_this(small: Any) -> None:
    """A line a request is how one client fills a disk."""
    assert [line for line in small.log if '"level": "info"' not in line] == []
