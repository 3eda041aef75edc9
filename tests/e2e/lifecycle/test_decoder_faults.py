"""A decoder that crashes ends the process loudly; one that hangs turns liveness red; DALI serves where it is."""

import contextlib
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from ...support.server_parts import encoded
from ...support.waiting import eventually
from ..connections.raw_client import IMAGE, WHOLE, dial

BROKEN = """
import signal, threading
from milkweed.loaders.decode.cpu import CpuLoader
def load(self, items, infos=None, sources=None):
    {what}
CpuLoader.load = load
"""


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_a_crash_in_the_decoder_ends_the_process_and_says_where(serving: Any, overlap: str) -> None:
    prelude = BROKEN.format(what=f"signal.pthread_kill(threading.get_ident(), {int(signal.SIGSEGV)})")
    with serving(prelude=prelude, overlap=overlap) as server:
        url = server.wait_ready()
        with pytest.raises(httpx.HTTPError):
            httpx.post(url + "/classify", content=IMAGE)
        assert server.exit() == -signal.SIGSEGV
        assert any("Fatal Python error: Segmentation fault" in line for line in server.log)
        assert any("in load" in line for line in server.log)


def test_a_decoder_that_hangs_is_seen_from_outside(serving: Any) -> None:
    with serving(
        prelude=BROKEN.format(what="threading.Event().wait()"),
        overlap="on",
        engine_stall_seconds=0.5,
        drain_seconds=0.5,
    ) as server:
        url = server.wait_ready()
        assert httpx.get(url + "/livez").status_code == 200

        def wait_in_vain() -> None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.post(url + "/classify", content=IMAGE)

        lost = threading.Thread(target=wait_in_vain)
        lost.start()
        status = 200
        while status == 200:  # ends: the stall limit is half a second
            status = httpx.get(url + "/livez").status_code
        assert status == 503
        answer = httpx.post(url + "/classify", content=b"not an image")
        assert answer.status_code == 415  # the event loop waits for no decoder
        server.process.kill()
        lost.join()


def test_dali_serves_over_a_socket(serving: Any) -> None:
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    images = [encoded("JPEG", seed=seed, size=(64, 64)) for seed in range(6)]
    with serving(loader="dali", overlap="on") as server:
        url = server.wait_ready()
        assert "loader dali: one-scan JPEGs on the cpu, exact resize" in server.line
        files = [("image", ("a.jpg", image, "image/jpeg")) for image in [*images[:3], images[3][:-400], *images[4:]]]
        results = httpx.post(url + "/classify", files=files).json()["results"]
        assert [result.get("error", {}).get("code") for result in results] == [None] * 3 + ["undecodable"] + [None] * 2
        alone = httpx.post(url + "/classify", content=images[5]).json()["results"]
        assert alone == results[5:]
        assert server.metric('milkweed_decode_backend_images_total{backend="dali",format="JPEG"}') == 6
        assert server.metric('milkweed_decoder_healthy{model="tiny"}') == 1
        assert server.metric('milkweed_decoder_rebuilds_total{model="tiny"}') == 0


HELD = """
import pathlib, time
from milkweed.loaders.decode.cpu import CpuLoader
load = CpuLoader.load
def held(self, items, infos=None, sources=None):
    pathlib.Path({began!r}).touch()
    while not pathlib.Path({gate!r}).exists():
        time.sleep(0.01)
    return load(self, items, infos, sources)
CpuLoader.load = held
"""


def test_clients_that_leave_are_noticed_at_once_and_not_computed(serving: Any, tmp_path: Path) -> None:
    began, gate = tmp_path / "began", tmp_path / "open"
    queued = 'milkweed_queue_depth_images{model="tiny"}'
    with serving(prelude=HELD.format(began=str(began), gate=str(gate)), max_batch_size=1) as server:
        stays = dial(server.wait_ready())
        stays.sendall(WHOLE)
        eventually(began.exists)
        for _ in range(3):
            with dial(server.url) as leaves:
                leaves.sendall(WHOLE)
                eventually(lambda: server.metric(queued) == 1)
            eventually(lambda: server.metric(queued) == 0)
        gate.touch()
        eventually(lambda: server.metric('milkweed_requests_cancelled_total{stage="wait"}') == 3)
        assert b"200 OK" in stays.recv(4096)
        stays.close()
        eventually(lambda: server.metric('milkweed_images_total{model="tiny",outcome="ok"}') == 1)
        eventually(lambda: server.metric('milkweed_batch_size_count{model="tiny"}') == 1)
