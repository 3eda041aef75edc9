"""Tests the probes of the metrics port, which shall fail where those of the service's port would not be answered."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from prometheus_client import Histogram

from milkweed.server.errors import ServiceError
from milkweed.server.process.metrics_port import MOST_LAG_SECONDS, with_probes
from milkweed.server.telemetry.loop_lag import LoopLag


def fine() -> None:
    pass


def loading() -> None:
    raise ServiceError("not_ready", "the models are loading")


def ask(path: str, lag: float = 0.0, draining: bool = False, started: Callable[[], None] = fine) -> tuple[str, bytes]:
    """Status and body of a probe."""
    service: Any = SimpleNamespace(
        check_alive=fine,
        check_ready=fine,
        check_started=started,
        draining=draining,
        lag=SimpleNamespace(seconds=lambda: lag),
    )
    said = []
    app = with_probes(lambda environ, start: [b"metrics"], service)
    body = b"".join(app({"PATH_INFO": path, "REQUEST_METHOD": "GET"}, lambda status, headers: said.append(status)))
    return (said or [""])[0], body


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startupz"])
def test_a_probe_fails_while_the_event_loop_hangs(path: str) -> None:
    assert ask(path) == ("200 OK", b"ok\n")
    late = ask(path, lag=MOST_LAG_SECONDS + 1)
    assert late == ("503 Service Unavailable", b"the event loop is 4 s late\n")
    assert ask(path, lag=MOST_LAG_SECONDS + 1, draining=True)[0] == "200 OK"  # its timers may have been stopped


def test_startupz_waits_for_the_models() -> None:
    assert ask("/startupz", started=loading) == ("503 Service Unavailable", b"the models are loading\n")
    assert ask("/metrics") == ("", b"metrics")


def test_the_lag_of_a_loop_that_hangs_is_seen_from_another_thread() -> None:
    """uvloop's own time stands still while it hangs."""
    lag, hanging, release = LoopLag(Histogram("lag", "", registry=None)), threading.Event(), threading.Event()

    async def hang() -> None:
        lag.start()
        hanging.set()
        assert release.wait(30)
        lag.stop()

    thread = threading.Thread(target=lambda: uvloop.run(hang()))
    thread.start()
    try:
        assert hanging.wait(30)
        before = lag.seconds()
        while lag.seconds() < before + 0.2:
            assert not release.wait(0.01)
    finally:
        release.set()
        thread.join()
