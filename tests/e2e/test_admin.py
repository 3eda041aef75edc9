"""The admin port of a real process: reloads under load lose nothing, and the port is closed to browsers."""

import shutil
import threading
from pathlib import Path
from typing import Any

import httpx

from ..support.ports import free_port
from ..support.server_parts import encoded


def test_reloads_under_load_lose_no_request(serving: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "tiny")
    port = free_port()
    with serving(bundles={}, repository=tmp_path, admin_port=port) as server:
        url, admin = server.wait_ready(), f"http://127.0.0.1:{port}"
        statuses: list[int] = []
        stop = threading.Event()

        def client(seed: int) -> None:
            image = encoded(seed=seed)
            with httpx.Client(base_url=url) as client:
                while not stop.is_set():
                    statuses.append(client.post("/classify", content=image).status_code)

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        with httpx.Client(base_url=admin, timeout=30) as asking:
            for _ in range(5):
                assert asking.post("/v1/models/tiny/load").status_code == 200
            index = asking.get("/v1/repository").json()
            assert index == {"models": [{"name": "tiny", "number": None, "serves": True}]}
            assert asking.post("/v1/repository/look", headers={"origin": "http://evil"}).status_code == 401
        stop.set()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200}
        assert len(statuses) > 10
        assert httpx.get(url + "/v1/repository").status_code == 404  # not on the service's port
        server.terminate()
        assert server.exit() == 0


DYING = """
from milkweed.server.engine import engine
engine.MAX_RESTARTS = 0
from milkweed.loaders.decode.cpu import CpuLoader
def load(self, items, infos=None, sources=None):
    raise SystemExit("killed")
CpuLoader.load = load
"""


def test_an_engine_that_cannot_go_on_ends_the_process_after_telling_everybody(serving: Any) -> None:
    with serving(prelude=DYING) as server:
        url = server.wait_ready()
        assert httpx.post(url + "/classify", content=encoded(), timeout=30).status_code in (500, 503)
        assert server.exit() == 1
        server.wait_log("the engine has ended")
