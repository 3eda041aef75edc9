"""Starting and stopping a real process loses no request."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from ...support.waiting import eventually
from ..connections.raw_client import HEAD, IMAGE, dial, error_of, read_end
from ..connections.test_hostile_crowds import HELD, IN_FLIGHT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow_beyond(1)
def test_signal_drains_without_losing_a_request(serving: Any, tmp_path: Path, number: signal.Signals) -> None:
    hold = tmp_path / "hold"

    async def stop_in_flight(server: Any) -> list[int]:
        async with httpx.AsyncClient(base_url=server.url) as client:
            posts = [asyncio.create_task(client.post("/classify", content=IMAGE)) for _ in range(6)]
            await asyncio.to_thread(eventually, lambda: server.metric(IN_FLIGHT) == len(posts))
            server.terminate(number)
            hold.unlink()
            return [answer.status_code for answer in await asyncio.gather(*posts)]

    with serving(fresh=number == signal.SIGTERM, prelude=HELD.format(path=str(hold))) as server:
        server.wait_ready()
        hold.touch()
        assert asyncio.run(stop_in_flight(server)) == [200] * 6
        assert server.exit() == 0


def test_not_ready_but_accepting_after_sigterm(serving: Any) -> None:
    with serving(drain_grace_seconds=20) as server, httpx.Client() as client:
        url = server.wait_ready()
        assert client.get(url + "/readyz").status_code == 200
        server.terminate()
        server.wait_log("stopping")
        unready = client.get(url + "/readyz")
        assert (unready.status_code, unready.json()["error"]["code"]) == (503, "draining")
        answer = client.post(url + "/classify", content=IMAGE)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        server.terminate()
        assert server.exit() == 128 + signal.SIGTERM  # the second signal does not wait


ON_SIGNAL = """
import gc, signal, sys
def tell(number, frame):
    print("collects:", gc.isenabled(), gc.get_freeze_count() > 100_000, file=sys.stderr, flush=True)
signal.signal(signal.SIGUSR1, tell)
"""


@pytest.mark.slow
def test_garbage_is_collected_from_the_start_of_the_models_on(serving: Any) -> None:
    with serving(fresh=True, prelude=ON_SIGNAL) as server:
        server.wait_ready()
        server.terminate(signal.SIGUSR1)
        assert server.wait_log("collects:").strip() == "collects: True True"


HELD_LOAD = """
import threading
from milkweed.models.bundle import bundle as opening
from milkweed.server.scheduler.scheduler import Scheduler
stopped, close, load = threading.Event(), Scheduler.close, opening.load_bundle
Scheduler.close = lambda self: (close(self), stopped.set())
opening.load_bundle = lambda *read: (stopped.wait(600), load(*read))[1]
"""
"""A model is loaded only once the server stops."""

FAILED_LOAD = """
def fail(*_):
    stopped.wait(600)
    raise ValueError("the load was interrupted, too")
opening.load_bundle = fail
"""


@pytest.mark.parametrize("load", [HELD_LOAD, HELD_LOAD + FAILED_LOAD])
def test_a_stop_while_models_load_is_no_error(serving: Any, load: str) -> None:
    with serving(prelude=load) as server:
        url = json.loads(server.wait_log("listening"))["event"]["url"]
        assert httpx.get(f"{url}/readyz").status_code == 503
        server.terminate()
        assert server.exit() == 0
        assert not [line for line in server.log if '"level": "error"' in line or line.startswith("milkweed: error")]


@pytest.mark.slow
def test_a_body_that_never_ends_gets_503_when_the_time_to_drain_is_over(serving: Any) -> None:
    """The answer has our shape, and is not uvicorn's 500."""
    with serving(drain_seconds=0.2, drain_grace_seconds=0) as server:
        with dial(server.wait_ready()) as client:
            client.sendall(HEAD + b"Content-Length: 1000\r\n\r\nbegin")
            eventually(lambda: server.metric(IN_FLIGHT) == 1)
            server.terminate()
            received = read_end(client)
        assert server.exit() == 0
    assert error_of(received) == (503, "draining")
    assert not [line for line in server.log if "Traceback" in line]
