"""Starting and stopping a real process: nothing is lost, and what cannot start says why in one line."""

import asyncio
import io
import json
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image


def slow_image() -> bytes:
    """An image whose decoding takes a good part of a second, to have requests in flight."""
    pixels = np.random.default_rng(0).integers(0, 256, (2500, 2500, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", compress_level=1)
    return out.getvalue()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_without_losing_a_request(serving: Any, number: signal.Signals) -> None:
    image = slow_image()

    async def stop_in_flight(server: Any) -> list[int]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            posts = [asyncio.create_task(client.post("/classify", content=image)) for _ in range(6)]
            in_flight = 'milkweed_http_requests_in_flight{route="/classify"}'
            while await asyncio.to_thread(server.metric, in_flight) < len(posts):
                pass
            server.terminate(number)
            return [answer.status_code for answer in await asyncio.gather(*posts)]

    with serving(fresh=number == signal.SIGTERM) as server:
        server.wait_ready()
        assert asyncio.run(stop_in_flight(server)) == [200] * 6
        assert server.exit() == 0


def test_not_ready_but_accepting_after_sigterm(serving: Any) -> None:
    out = io.BytesIO()
    Image.new("RGB", (40, 40)).save(out, "JPEG")
    with serving(drain_grace_seconds=20) as server, httpx.Client() as client:
        url = server.wait_ready()
        assert client.get(url + "/readyz").status_code == 200
        server.terminate()
        server.wait_log("stopping")
        unready = client.get(url + "/readyz")
        assert (unready.status_code, unready.json()["error"]["code"]) == (503, "draining")
        answer = client.post(url + "/classify", content=out.getvalue())
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        server.terminate()
        assert server.exit() == 128 + signal.SIGTERM  # the second signal does not wait


HELD_LOAD = """
import threading
from milkweed.inference import open as opening
from milkweed.server.scheduler.scheduler import Scheduler
stopped, close, load = threading.Event(), Scheduler.close, opening.load_bundle
Scheduler.close = lambda self: (close(self), stopped.set())
opening.load_bundle = lambda path: (stopped.wait(60), load(path))[1]
"""
"""A model is loaded only once the server stops."""

FAILED_LOAD = """
def fail(path):
    stopped.wait(60)
    raise ValueError("the load was interrupted, too")
opening.load_bundle = fail
"""


@pytest.mark.parametrize("load", [HELD_LOAD, HELD_LOAD + FAILED_LOAD])
def test_a_stop_while_models_load_is_no_error(serving: Any, load: str) -> None:
    with serving(prelude=load) as server:
        url = json.loads(server.wait_log("listening"))["event"]["url"]
        assert httpx.get(f"{url}/readyz", timeout=60).status_code == 503
        server.terminate()
        assert server.exit() == 0
        assert not [line for line in server.log if '"level": "error"' in line or line.startswith("milkweed: error")]


def test_port_in_use_is_one_line_and_exit_code_1(serving: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(port=port, fresh=True) as server:
            assert server.exit() == 1
            assert server.log == [f"milkweed: error: cannot listen on 127.0.0.1 port {port}: Address already in use\n"]
        with serving(metrics_port=port) as server:
            assert server.exit() == 1
            [line] = server.log
            assert f"metrics port {port}: Address already in use (--metrics-port 0 turns it off)" in line


def test_broken_bundle_is_one_line_and_exit_code_1(serving: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "broken"
    shutil.copytree(tiny_bundle, bundle)
    weights = bundle / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with serving({"broken": bundle}, fresh=True) as server:
        assert server.exit() == 1
        [line] = [line for line in server.log if not line.startswith("{")]  # the rest is the log, in JSON
    assert line.startswith(f"milkweed: error: bundle {bundle}: model.safetensors")


def test_sigterm_under_load_answers_or_refuses_but_never_resets(serving: Any) -> None:
    """Clients that retry nothing: each request is answered 200, until a connection is refused."""
    out = io.BytesIO()
    Image.new("RGB", (60, 60), "teal").save(out, "JPEG")
    body = out.getvalue()
    request = b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def client(host: str, port: int, statuses: list[bytes], started: asyncio.Event) -> str:
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, port)
            except ConnectionRefusedError:
                return "refused"
            while not writer.is_closing():
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                statuses.append(head[9:12])
                if len(statuses) >= 100:
                    started.set()
                if b"connection: close" in head:
                    writer.close()

    async def load(server: Any) -> tuple[list[str], list[bytes]]:
        host, port = server.url.removeprefix("http://").split(":")
        statuses: list[bytes] = []
        started = asyncio.Event()
        clients = [asyncio.create_task(client(host, int(port), statuses, started)) for _ in range(16)]
        await started.wait()
        server.terminate()
        return await asyncio.gather(*clients), statuses

    with serving() as server:
        server.wait_ready()
        ends, statuses = asyncio.run(load(server))
        assert ends == ["refused"] * 16
        assert set(statuses) == {b"200"}
        assert server.exit() == 0
