"""Requests that lie, are too much or are none: each is answered clearly or cut off, and others never notice."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from .raw_client import (
    HEAD,
    IMAGE,
    LITTLE_PATIENCE,
    WHOLE,
    check_others,
    dial,
    error_of,
    read_end,
    statuses,
)


@pytest.fixture(scope="module")
def small(serving: Any) -> Iterator[Any]:
    """A server with little patience."""
    with serving(**LITTLE_PATIENCE) as server:
        server.wait_ready()
        yield server


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
    assert b"<script>" not in received  # of a host; the page has its own, with attributes


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


def test_no_line_was_logged_for_any_of_this(small: Any) -> None:
    """A line a request is how one client fills a disk."""
    assert [line for line in small.log if '"level": "info"' not in line] == []
