"""Aliases, limits of a model and the cache of a real process: given on the command line, switched under load."""

import shutil
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..support.ports import free_port
from .test_serving import jpeg


def test_an_alias_is_switched_under_load_and_nobody_notices(serving: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        shutil.copytree(tiny_bundle, tmp_path / "tiny" / str(number))
    port = free_port()
    settings = {"aliases": "production=tiny@1,latest=tiny", "keep_versions": 2, "cache_bytes": 1 << 20}
    with serving(bundles={}, repository=tmp_path, admin_port=port, **settings) as server:
        url, admin = server.wait_ready(), f"http://127.0.0.1:{port}"
        answers: list[httpx.Response] = []
        stop = threading.Event()

        def client(seed: int) -> None:
            image = jpeg(seed)
            with httpx.Client(base_url=url, params={"model": "production"}) as client:
                while not stop.is_set():
                    answers.append(client.post("/classify", content=image))

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        with httpx.Client(base_url=admin, timeout=30) as asking:
            for turn in range(20):
                target = {"model": "tiny", "version": str(2 - turn % 2)}
                assert asking.put("/v1/aliases/production", json=target).status_code == 200
            assert asking.post("/v1/models/tiny/unload").status_code == 409
            listed = [{"name": "production", **target}, {"name": "latest", "model": "tiny", "version": None}]
            assert asking.get("/v1/aliases").json() == {"aliases": listed}
            assert httpx.get(url + "/v1/models").json()["aliases"] == listed
        stop.set()
        for thread in threads:
            thread.join()
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.json()["model"] for answer in answers} == {"tiny"}
        said = [answer.headers["x-cache"] for answer in answers]
        # Three images and two instances of the model; several may be on their way before the first is known.
        assert said.count("MISS") >= 3
        assert said.count("HIT") == server.metric('milkweed_cache_hits_total{model="tiny"}') > 0
        assert said.count("MISS") == server.metric('milkweed_cache_misses_total{model="tiny"}')
        assert 3 <= server.metric("milkweed_cache_entries") <= 6
        server.terminate()
        assert server.exit() == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"aliases": "tiny=tiny"}, "alias tiny -> tiny would hide the model tiny"),
        ({"aliases": "production=tiny@7"}, "alias production -> tiny@7: no version '7' of tiny"),
        ({"model_limits": "tony.top_k=1"}, "model_limits names tony: no such model is served; there are: tiny"),
    ],
)
def test_bad_alias_name_stops_the_start_with_one_line(serving: Any, settings: dict[str, str], words: str) -> None:
    with serving(**settings) as server:
        assert server.exit() == 1
        [line] = [line for line in server.log if "error" in line.lower()]
        assert words in line
        assert not any("Traceback" in line for line in server.log)
