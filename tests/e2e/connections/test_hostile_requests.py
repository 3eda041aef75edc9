"""Requests that lie, are too much or are none: each is answered clearly or cut off, and others never notice."""

import contextlib
from typing import Any

import pytest

from .raw_client import HEAD, IMAGE, WHOLE, check_others, dial, error_of, read_end, statuses


def test_a_content_length_that_is_too_short_ends_the_connection(small: Any) -> None:
    with dial(small.url) as client:
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
@pytest.mark.slow_beyond(2)
def test_lies_about_the_body_are_400(small: Any, head: bytes, body: bytes) -> None:
    with dial(small.url) as client:
        client.sendall(HEAD + head + b"\r\n" + body)
        assert error_of(read_end(client)) == (400, "bad_request")
    check_others(small)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # a TLS hello
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",  # the preface of HTTP/2
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1 GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"get / http/1.1\r\n\r\n",
        b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_what_is_no_request_is_400(small: Any, data: bytes) -> None:
    with dial(small.url) as client:
        client.sendall(data)
        assert error_of(read_end(client)) == (400, "bad_request")


def ask(server: Any, head: bytes) -> bytes:
    """All that is answered to one head, to which the end of the connection is added."""
    with dial(server.url) as client:
        client.sendall(head + b"Connection: close\r\n\r\n")
        return read_end(client)


@pytest.mark.parametrize("target", [b"//", b"/../../etc/passwd", b"http://elsewhere/x", b"/" + b"a" * 9000])
def test_any_target_is_answered(small: Any, target: bytes) -> None:
    assert error_of(ask(small, b"OPTIONS %b HTTP/1.1\r\nHost: x\r\n" % target)) == (404, "not_found")


NO_TARGETS = rb"""
/%00 /%0a /livez%0d /%7f /%c2%85 /classify?model=%00 /?a=%0A /%ff /%c0%af /%e0%80%af /%ed%a0%80 /%f4%90%80%80
/livez?a=%ff /%e2%82 /% /%zz /livez%2 /a#b /livez# * */livez http://u@x/livez http://u:p@x/livez http:///livez
ftp://x/livez http://x:99999/livez http://a,b/livez x:80 http://x/%00 http://[::1/livez
""".split()


@pytest.mark.parametrize("target", NO_TARGETS)
def test_a_target_that_is_none_is_400(small: Any, target: bytes) -> None:
    assert error_of(ask(small, b"GET %b HTTP/1.1\r\nHost: x\r\n" % target)) == (400, "bad_request")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://elsewhere/livez", "livez"),
        (b"HTTPS://elsewhere:443/livez?a=b", "livez"),
        (b"http://[::1]:80/livez", "livez"),
        (b"http://x%2dy/%6civez", "livez"),
        (b"http://elsewhere", "page"),
        (b"http://elsewhere?a=/livez", "page"),
        (b"/?a=%C3%A9&b[]=<>", "page"),
        (b"/v2/models/%e2%82%ac", "unknown"),
    ],
)
def test_a_target_is_read_as_it_is_meant(small: Any, target: bytes, path: str) -> None:
    received = ask(small, b"GET %b HTTP/1.1\r\nHost: x\r\n" % target)
    if path == "unknown":
        assert statuses(received) == [404]
        assert "model €".encode() in received or b"\\u20ac" in received
    else:
        assert statuses(received) == [200]
        assert (b'"ok"' in received) == (path == "livez")


@pytest.mark.parametrize("target", [b"*", b"http://elsewhere", b"http://elsewhere:80"])
def test_the_server_as_a_whole_has_options(small: Any, target: bytes) -> None:
    received = ask(small, b"OPTIONS %b HTTP/1.1\r\nHost: x\r\n" % target)
    assert statuses(received) == [204]
    assert b"\r\nallow: GET, HEAD, OPTIONS, POST\r\n" in received
    assert b"x-request-id: " in received
    assert received.endswith(b"\r\n\r\n")


NAMES = rb"[ ] [] [::1 % %zz x:99999 x:65536 x:-1 x:http <script> a,b u@x u:p@x x/y x?y http://x :80 [::1]x".split()
NO_HOSTS = [
    *(b"", b"Host:\r\n", b"Host: x\r\nHost: x\r\n", b"Host: x\r\nhost: y\r\n"),
    *(b"Host: %b\r\n" % name for name in (*NAMES, b"a b", b"x:8 0", b"\xff", b"a" * 300)),
]


@pytest.mark.parametrize("host", NO_HOSTS)
@pytest.mark.parametrize("path", [b"/livez", b"/nowhere", b"http://x/livez"])
def test_a_host_that_is_none_is_400(small: Any, host: bytes, path: bytes) -> None:
    received = ask(small, b"GET %b HTTP/1.1\r\n%b" % (path, host))
    assert error_of(received) == (400, "bad_request")
    assert b"<script>" not in received


@pytest.mark.parametrize(
    "host",
    [
        *(b"x", b"x:", b"x:80", b"x:65535", b"127.0.0.1:8000", b"[::1]", b"[::1]:8000", b"my_service.ns.svc", b"x%2Dy"),
        *(b"  x  ", b"\tx:80\t", b"EXAMPLE.org.", b"xn--bcher-kva.example"),
    ],
)
def test_a_host_is_a_name_or_an_address(small: Any, host: bytes) -> None:
    assert statuses(ask(small, b"GET /livez HTTP/1.1\r\nHost:%b\r\n" % host)) == [200]


def test_http_1_0_need_not_say_its_host(small: Any) -> None:
    assert statuses(ask(small, b"GET /livez HTTP/1.0\r\n")) == [200]
    assert error_of(ask(small, b"GET /livez HTTP/1.0\r\nHost: a b\r\n")) == (400, "bad_request")


def test_a_hundred_thousand_headers_are_431(small: Any) -> None:
    with dial(small.url) as client, contextlib.suppress(ConnectionError):
        client.sendall(HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(100_000)) + b"\r\n")
        assert error_of(read_end(client)) == (431, "headers_too_large")
    check_others(small)


@pytest.mark.parametrize("start", [HEAD + b"X: ", b"GET /", b"GET /?a="])
def test_a_huge_header_or_target_is_431(small: Any, start: bytes) -> None:
    before = small.metric('milkweed_http_connections_closed_total{reason="too_large"}')
    with dial(small.url) as client:
        with contextlib.suppress(ConnectionError):
            for data in (start, *[b"a" * 65_536] * 32):
                client.sendall(data)
        assert error_of(read_end(client)) == (431, "headers_too_large")
    assert small.metric('milkweed_http_connections_closed_total{reason="too_large"}') == before + 1


def test_as_many_headers_as_may_be_are_served(small: Any) -> None:
    with dial(small.url) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(98)))
        client.sendall(b"Connection: close\r\n\r\n")
        assert statuses(read_end(client)) == [200]


def test_trailers_are_no_headers(small: Any) -> None:
    """Whoever checks headers before us does not check them."""
    body = b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(IMAGE), IMAGE)
    with dial(small.url) as client:
        client.sendall(HEAD + body + b"X-Request-ID: smuggled\r\nX-Request-Timeout-Ms: 0\r\n\r\n")
        received = read_end(client)
    assert statuses(received) == [200]
    assert b"smuggled" not in received


def test_endless_trailers_are_refused(small: Any) -> None:
    body = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(IMAGE), IMAGE)
    with dial(small.url) as client:
        client.sendall(HEAD + body + b"a: b\r\n" * 1000 + b"\r\n")
        assert error_of(read_end(client)) == (431, "headers_too_large")


def test_pipelined_requests_are_answered_in_order(small: Any) -> None:
    last = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with dial(small.url) as client:
        client.sendall(WHOLE * 3 + b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n" + WHOLE + last)
        assert statuses(read_end(client)) == [200, 200, 200, 404, 200, 200]


def test_garbage_behind_a_request_does_not_take_its_answer(small: Any) -> None:
    with dial(small.url) as client:
        client.sendall(WHOLE + b"\x00\x01garbage\r\n\r\n")
        assert statuses(read_end(client))[0] == 200


H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
WEBSOCKET = b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


@pytest.mark.parametrize(
    "offer",
    [
        H2C,
        H2C + b"Expect: 100-continue\r\n",
        WEBSOCKET,
        b"Connection: Upgrade\r\nUpgrade: TLS/1.0, HTTP/2.0\r\n",
        b"Upgrade: h2c\r\n",
        b"Connection: TE, foo\r\nTE: trailers, deflate;q=0.5\r\n",
        b"Expect: 200-ok\r\n",
        b"Accept-Encoding: zstd, identity;q=0\r\nAccept-Charset: utf-16\r\n",
        b"Accept: text/html;q=0.9, ;;,\r\n",
        b"Prefer: respond-async, wait=0\r\nPriority: u=1, i\r\nEarly-Data: 1\r\n",
        b'Range: bytes=0-1\r\nIf-None-Match: *\r\nIf-Match: "x"\r\nIf-Modified-Since: yesterday\r\n',
        b"traceparent: zz\r\ntracestate: ,,=\r\nWant-Repr-Digest: sha-256=1\r\n",
    ],
)
def test_an_offer_of_the_client_fails_no_request(small: Any, offer: bytes) -> None:
    """RFC 9110 7.8: the server may ignore an Upgrade. Stock Java clients offer h2c with every POST."""
    chunked = HEAD + offer + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(IMAGE) + IMAGE + b"\r\n0\r\n\r\n"
    whole = HEAD + offer + WHOLE.removeprefix(HEAD)
    get = b"GET /livez HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n"
    last = b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with dial(small.url) as client:
        client.sendall(whole + get + chunked + last)
        answers = [status for status in statuses(read_end(client)) if status != 100]
    assert answers == [200, 200, 200, 200]
    with dial(small.url) as client:  # the head in two pieces, the body in two more
        for piece in (whole[: len(HEAD) + 20], whole[len(HEAD) + 20 : -50], whole[-50:-1], whole[-1:] + last):
            client.sendall(piece)
        assert [status for status in statuses(read_end(client)) if status != 100] == [200, 200]


def test_http_1_0_gets_no_100_continue(small: Any) -> None:
    """RFC 9110 15.2 forbids it."""
    expect = b"Expect: 100-continue\r\n"
    with dial(small.url) as client:
        client.sendall((HEAD + expect).replace(b"1.1", b"1.0") + WHOLE.removeprefix(HEAD))
        assert statuses(read_end(client)) == [200]


@pytest.mark.parametrize(
    "header",
    [
        b"Host: x",
        b"Content-Type: image/jpeg",
        b"Authorization: Bearer a",
        b"X-API-Key: a",
        b"X-Request-Timeout-Ms: 5000",
        b"X-Priority: batch",
        b"Content-Length: %d" % len(IMAGE),
        b"Transfer-Encoding: chunked",
    ],
)
def test_a_header_that_says_one_thing_comes_once(small: Any, header: bytes) -> None:
    """A second Content-Type is refused: the server used to take the last one, where a proxy may have read the first."""
    head = HEAD.replace(b"Host: x\r\n", b"") if header.startswith(b"Host") else HEAD
    rest = b"\r\n" if b"Length" in header or b"Encoding" in header else b"Content-Length: %d\r\n\r\n" % len(IMAGE)
    with dial(small.url) as client:
        client.sendall(head + (header + b"\r\n") * 2 + rest + IMAGE)
        assert error_of(read_end(client)) == (400, "bad_request")
