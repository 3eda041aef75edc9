"""The admin port of a real process, and the end of one whose engine cannot go on."""

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from milkweed.bench.ports import free_port

from ..support.server_parts import encoded
from ..support.waiting import HANG_SECONDS


@pytest.mark.slow
def test_the_admin_port_loads_models_and_is_closed_to_browsers(serving: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "tiny")
    port = free_port()
    with serving(bundles={}, repository=tmp_path, admin_port=port) as server:
        url = server.wait_ready()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG_SECONDS) as admin:
            assert admin.post("/v1/models/tiny/load").status_code == 200
            tiny = {"name": "tiny", "number": None, "serves": True, "error": None}
            assert admin.get("/v1/repository").json() == {"models": [tiny]}
            assert admin.post("/v1/repository/poll", headers={"origin": "http://evil"}).status_code == 401
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
        assert httpx.post(url + "/classify", content=encoded(), timeout=HANG_SECONDS).status_code in (500, 503)
        assert server.exit() == 1
        server.wait_log("the engine has ended")
