"""The metrics port under clients that keep it busy: it goes on, and takes nothing away from the service's port."""

import contextlib
import resource
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from ...support.waiting import eventually
from .raw_client import check_others, dial, read_end, trickling
from .test_hostile_crowds import crowded

FILES = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}))\n"


@pytest.fixture(autouse=True, scope="module")
def many_files() -> Iterator[None]:
    """Let this process have thousands of connections open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def cpu_seconds(server: Any, wall_seconds: float) -> float:
    """What the server's process computes in so many seconds."""
    process = psutil.Process(server.process.pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(wall_seconds)
    return float(sum(process.cpu_times()[:2]) - before)


@pytest.mark.slow
def test_idle_connections_take_nothing_from_the_service(serving: Any) -> None:
    with crowded(serving, 200, prelude=FILES.format(1024)) as server, contextlib.ExitStack() as stack:
        process = psutil.Process(server.process.pid)
        threads = process.num_threads()
        for _ in range(2000):
            stack.enter_context(dial(server.metrics_url))
        check_others(server)
        assert "milkweed_http_connections " in httpx.get(server.metrics_url + "/metrics").text
        for probe in ("/livez", "/readyz"):
            assert httpx.get(server.metrics_url + probe).text == "ok\n"
        assert process.num_threads() <= threads + 40  # with some of the event loop
        eventually(lambda: cpu_seconds(server, 1.0) < 0.3)  # once it has done with the crowd
        for _ in range(10):
            stack.enter_context(dial(server.metrics_url))
            assert httpx.get(server.metrics_url + "/livez").status_code == 200


def test_a_connection_has_a_time(serving: Any) -> None:
    short = "from milkweed.server.process import metrics_port; metrics_port.CONNECTION_SECONDS = 1.0\n"
    with crowded(serving, 8, prelude=short) as server, contextlib.ExitStack() as stack:
        silent, slow = stack.enter_context(dial(server.metrics_url)), stack.enter_context(dial(server.metrics_url))
        slow.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        with trickling(slow, b"a"):
            assert read_end(silent) == read_end(slow) == b""
        assert httpx.get(server.metrics_url + "/livez").status_code == 200
        with dial(server.metrics_url) as broken:
            broken.sendall(b"\x16\x03\x01\xff\r\n\r\n")
            assert b"400" in read_end(broken)
        assert [line for line in server.log if '"level": "info"' not in line] == []


@pytest.mark.slow
def test_more_connections_than_files(serving: Any) -> None:
    """What may be open is fewer than max_connections says."""
    with crowded(serving, 4096, prelude=FILES.format(400)) as server, contextlib.ExitStack() as stack:
        server.wait_log("max_connections is 144, not 4096: only 400 files may be open")
        for _ in range(1000):
            stack.enter_context(dial(server.url))
        check_others(server)
        assert httpx.get(server.metrics_url + "/readyz").text == "ok\n"
        eventually(lambda: cpu_seconds(server, 1.0) < 0.3)  # once it has done with the crowd
        check_others(server)
