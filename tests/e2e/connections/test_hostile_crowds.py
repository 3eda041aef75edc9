"""More connections than there may be: who owes the server bytes for longest makes room, honest clients are served."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from milkweed.bench.ports import free_port

from ...support.waiting import HANG_SECONDS, eventually
from .raw_client import HEAD, IMAGE, WHOLE, check_others, dial, error_of, read_end, statuses

IN_FLIGHT = 'milkweed_http_requests_in_flight{route="/classify"}'
OPEN = "milkweed_http_connections"


@contextlib.contextmanager
def crowded(serving: Any, most: int, **settings: object) -> Iterator[Any]:
    """A server for so many connections; its metrics are read on their own port, which takes none of them."""
    port = free_port()
    with serving(max_connections=most, metrics_port=port, **settings) as server:
        server.wait_ready()
        server.metrics_url = f"http://127.0.0.1:{port}"
        yield server


def wait_for(server: Any, sample: str, value: float) -> None:
    eventually(lambda: server.metric(sample, server.metrics_url) == value, f"{sample} is {value}")


def test_bodies_that_do_not_come_keep_nobody_out(serving: Any) -> None:
    patient = int(10_000 * HANG_SECONDS)
    with crowded(serving, 64, body_timeout_ms=patient) as server, contextlib.ExitStack() as stack:
        stalled = [stack.enter_context(dial(server.url)) for _ in range(64)]
        for client in stalled:
            client.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        wait_for(server, IN_FLIGHT, 64)
        assert httpx.get(server.url + "/livez").status_code == 200
        check_others(server)
        received = read_end(stalled[0])
        assert error_of(received) == (503, "overloaded")
        assert b"retry-after: 1" in received
        assert b"limit of 64 connections" in received
        assert server.metric('milkweed_http_connections_closed_total{reason="evicted"}', server.metrics_url) > 0


def test_a_steady_upload_outlives_a_flood_of_connections(serving: Any) -> None:
    """It is the oldest of all connections, and its body is far from whole."""
    body = IMAGE + bytes(40 * 4000 - len(IMAGE))
    with crowded(serving, 8, body_min_bytes_per_second=1000) as server, contextlib.ExitStack() as stack:
        client = stack.enter_context(dial(server.url))
        client.sendall(HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body))
        wait_for(server, IN_FLIGHT, 1)
        for start in range(0, len(body), 4000):
            client.sendall(body[start : start + 4000])
            stack.enter_context(dial(server.url)).sendall(HEAD + b"Content-Length: 9\r\n\r\n")
            time.sleep(0.02)
        assert statuses(read_end(client)) == [200]


HELD = """
import os, time
from milkweed.loaders.decode.cpu import CpuLoader
load = CpuLoader.load
def held(self, *args, **kwargs):
    while os.path.exists({path!r}):
        time.sleep(0.01)
    return load(self, *args, **kwargs)
CpuLoader.load = held
"""
"""No image is decoded while a file is there."""


def test_when_all_are_being_answered_a_new_one_is_503(serving: Any, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    with crowded(serving, 4, prelude=HELD.format(path=str(hold))) as server, contextlib.ExitStack() as stack:
        hold.touch()
        busy = [stack.enter_context(dial(server.url)) for _ in range(4)]
        for client in busy:
            client.sendall(WHOLE.replace(b"Host: x\r\n", b"Host: x\r\nConnection: close\r\n"))
        wait_for(server, IN_FLIGHT, 4)
        for _ in range(3):
            late = stack.enter_context(dial(server.url))
            late.sendall(WHOLE)
            received = read_end(late)
            assert error_of(received) == (503, "overloaded")
            assert b"limit of 4 connections" in received
        for path in (b"/livez", b"/readyz", b"/startupz", b"/v2/health/live", b"/v2/health/ready?x"):
            probe = stack.enter_context(dial(server.url))
            probe.sendall((b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path) * 2 + WHOLE)
            assert statuses(read_end(probe)) == [200]  # and nothing else
        hold.unlink()
        assert [statuses(read_end(client)) for client in busy] == [[200]] * 4


def test_refused_connections_do_not_pile_up(serving: Any, tmp_path: Path) -> None:
    """Each may read for a moment why, but only so many at once."""
    hold = tmp_path / "hold"
    with crowded(serving, 1, prelude=HELD.format(path=str(hold))) as server, contextlib.ExitStack() as stack:
        hold.touch()
        client = stack.enter_context(dial(server.url))
        client.sendall(WHOLE.replace(b"Host: x\r\n", b"Host: x\r\nConnection: close\r\n"))
        wait_for(server, IN_FLIGHT, 1)
        for _ in range(200):
            stack.enter_context(dial(server.url))
        wait_for(server, 'milkweed_http_connections_closed_total{reason="refused"}', 200 - 32)
        assert server.metric(OPEN, server.metrics_url) <= 1 + 32
        assert httpx.get(server.url + "/livez").status_code == 200
        hold.unlink()
        assert statuses(read_end(client)) == [200]


@pytest.mark.slow
def test_what_is_sent_ahead_of_answers_has_a_limit(serving: Any, tmp_path: Path) -> None:
    """A 4th of max_held_bytes for all; 500 connections had 130 MB beside a limit of 64 MiB."""
    hold = tmp_path / "hold"
    ahead = HEAD + b"Content-Length: 120000\r\nConnection: close\r\n\r\n" + IMAGE + bytes(120_000 - len(IMAGE))
    limits = {"max_held_bytes": 1 << 20, "max_body_bytes": 1 << 19, "max_image_bytes": 1 << 19}
    with (
        crowded(serving, 64, prelude=HELD.format(path=str(hold)), **limits) as server,
        contextlib.ExitStack() as stack,
    ):
        hold.touch()
        clients = [stack.enter_context(dial(server.url)) for _ in range(8)]
        for count, client in enumerate(clients, 1):
            client.sendall(WHOLE)
            wait_for(server, IN_FLIGHT, count)
        for client in clients:
            client.sendall(ahead[:100_000])
        while server.metric('milkweed_http_connections_closed_total{reason="too_large"}', server.metrics_url) < 6:
            pass  # two have room, in whatever order the bytes come
        hold.unlink()
        for client in clients:
            with contextlib.suppress(OSError):  # closed before that
                client.sendall(ahead[100_000:])
        answers = [statuses(read_end(client)) for client in clients]
        assert [first for first, *_ in answers] == [200] * 8
        assert sum(rest == [200] for _, *rest in answers) <= 2
        assert all(rest in ([], [200], [503]) for _, *rest in answers)  # 503 where the head was there
        with dial(server.url) as client:  # nothing counts any more
            client.sendall(WHOLE + ahead)
            assert statuses(read_end(client)) == [200, 200]


BIG = """
from milkweed.server.service.service import Service
from milkweed.server.http.transport import unread
plain = Service.exposition
async def exposition(self, accept, *more):
    return (b"x" * 12_000_000, "text/plain") if accept == "big" else await plain(self, accept, *more)
Service.exposition = exposition
unread.NOT_READING_SECONDS, unread.LOOK_SECONDS = 0.5, 0.05
"""
"""GET /metrics answers with 12 MB to who wants it, and a client may read nothing for half a second."""

BIG_LENGTH = 12_000_000


@pytest.fixture(scope="module")
def big(serving: Any) -> Iterator[Any]:
    with crowded(serving, 8, prelude=BIG) as server:
        yield server


@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
@pytest.mark.slow
def test_who_reads_slowly_gets_the_whole_answer(big: Any, connection: bytes) -> None:
    received = 0
    with dial(big.url) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: big\r\nConnection: %b\r\n\r\n" % connection)
        begun = time.monotonic()
        while received < BIG_LENGTH:
            data = client.recv(65_536)
            assert data, f"cut off after {received} bytes and {time.monotonic() - begun:.1f} s"
            received += len(data)
            time.sleep(0.01)
        assert time.monotonic() - begun > 1.0  # twice as long as it may read nothing


@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
def test_who_does_not_read_is_cut_off(big: Any, connection: bytes) -> None:
    reason = 'milkweed_http_connections_closed_total{reason="not_reading"}'
    before = big.metric(reason, big.metrics_url)
    with dial(big.url) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: big\r\nConnection: %b\r\n\r\n" % connection)
        wait_for(big, reason, before + 1)
        assert len(read_end(client)) < BIG_LENGTH


def test_who_does_not_read_makes_room(serving: Any) -> None:
    patient = BIG.replace("0.5, 0.05", "60, 0.05")
    with crowded(serving, 4, prelude=patient) as server, contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(dial(server.url))
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: big\r\n\r\n" * 9)
        # Whether they read is looked at now and then. Probes are answered before there is room.
        eventually(lambda: httpx.post(server.url + "/classify", content=IMAGE).is_success)
        check_others(server)
