"""Clients that are slow or greedy: each is answered clearly or cut off, and others never notice."""

import contextlib
import time
from typing import Any

import pytest

from .raw_client import (
    BODY_MS,
    HEAD,
    IMAGE,
    MAX_CONNECTIONS,
    WHOLE,
    check_others,
    dial,
    error_of,
    read_end,
    statuses,
    trickling,
)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"X-Slow: ", b"a"),
        (b"Content-Length: 5000\r\n\r\n", b"a"),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    ],
)
def test_what_trickles_is_408(small: Any, start: bytes, piece: bytes) -> None:
    before = small.metric('milkweed_requests_rejected_total{reason="request_timeout"}')
    with dial(small.url) as client:
        client.sendall(HEAD + start)
        with trickling(client, piece):
            check_others(small)
            assert error_of(read_end(client)) == (408, "request_timeout")
    assert small.metric('milkweed_requests_rejected_total{reason="request_timeout"}') == before + 1


def test_a_slow_body_that_is_quick_enough_is_served(small: Any) -> None:
    """Beyond the time for a body, but with more bytes a second than is asked for."""
    body = IMAGE + bytes(3 << 20)
    piece = len(body) // 12
    with dial(small.url) as client:
        client.sendall(HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body))
        for start in range(0, len(body), piece):
            time.sleep(BODY_MS / 1e3 / 8)
            client.sendall(body[start : start + piece])
        assert statuses(read_end(client)) == [200]


def test_a_content_length_that_is_too_long_is_408(small: Any) -> None:
    with dial(small.url) as client:
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (len(IMAGE) + 10) + IMAGE)
        assert error_of(read_end(client)) == (408, "request_timeout")


def test_blank_lines_keep_no_connection(small: Any) -> None:
    with dial(small.url) as client:
        client.sendall(WHOLE)
        with trickling(client, b"\r\n"):
            assert statuses(read_end(client)) == [200]


def test_silence_is_patiently_borne_and_makes_room(small: Any) -> None:
    """More connections than there may be: whoever was silent for longest goes, whoever asks is answered."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(dial(small.url)) for _ in range(MAX_CONNECTIONS)]
        check_others(small)
        assert read_end(silent[0]) == b""  # the first one made room
        silent[-1].sendall(WHOLE.replace(b"Host: x", b"Host: x\r\nConnection: close"))
        assert statuses(read_end(silent[-1])) == [200]
    assert small.metric('milkweed_http_connections_closed_total{reason="evicted"}') > 0


def test_slow_headers_on_all_connections_keep_nobody_out(small: Any) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            stack.enter_context(dial(small.url)).sendall(HEAD + b"X-Slow: ")
        check_others(small)


def test_a_flood_of_pipelined_requests_is_cut(small: Any) -> None:
    with dial(small.url) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 5000)
        received = read_end(client)
    assert 0 < len(statuses(received)) < 100
    assert set(statuses(received)) == {200}
    check_others(small)
