"""A bundle can do no harm: whatever kills, stalls or fills the process that opens it first costs one line."""

import os
import re
import shutil
from pathlib import Path

import httpx
import pytest

from milkweed.bench.ports import free_port

from ...server.repository.hostile_bundles import DEMO, HOSTILE
from ...support.server_parts import encoded
from ..conftest import Serve

SECONDS = 10
"""The hanging bundle takes as long; no sound one should on the busiest machine."""

HOOK = """
import os, signal, sys, time
def hook(event, args):
    if event == "open" and "/sound/2/" in str(args[0]):
        os.kill(os.getpid(), signal.SIGSEGV)
    if event == "open" and "/hanging/" in str(args[0]):
        time.sleep(3600)
sys.addaudithook(hook)
"""
"""In every process: a library that a bundle makes crash, and a file that never comes."""

EXCHANGE = """
def exchange(event, args, done=[]):
    if event == "open" and "/exchanged/" in str(args[0]) and not done:
        done.append(True)
        os.rename({0!r} + "/exchanged", {0!r} + "/.before")
        os.rename({0!r} + "/.other", {0!r} + "/exchanged")
sys.addaudithook(exchange)
"""
"""In the server alone: another bundle takes the place of one that a child has opened, before the server opens it."""

LINES = {
    **{name: line for name, (_, line) in HOSTILE.items()},
    "sound/2": "model sound cannot be opened: the process that tried it was ended by SIGSEGV",
    "hanging": f"model hanging cannot be opened: took longer than {SECONDS} s",
    "exchanged": "was replaced while it was opened",
}


STILL_THERE = ("arena", "merge-after-pyramid", "cut-labels")


def fill(root: Path) -> None:
    """Put all bundles into the repository, as whole folders."""
    for name in ("sound/2", "exchanged", "zz-late"):
        shutil.copytree(DEMO, root / name)
    shutil.copytree(DEMO, root / ".other")
    config = (root / ".other" / "config.json").read_text()
    (root / ".other" / "config.json").write_text(config.replace('"crop_pct": 1.0', '"crop_pct": 0.5'))
    assert (root / ".other" / "config.json").read_text() != config
    shutil.copytree(DEMO, root / "hanging")
    for name, (put, _) in HOSTILE.items():
        put(root / name)


@pytest.mark.slow
def test_a_running_server_is_unharmed_by_hostile_bundles_and_so_is_the_next_start(
    serving: Serve, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    shutil.copytree(DEMO, root / "sound" / "1")
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    paths = f"os.environ |= {{'PYTHONPATH': {str(tmp_path)!r}, 'XDG_CACHE_HOME': {str(tmp_path / 'cache')!r}}}\n"
    prelude = HOOK + paths + EXCHANGE.format(str(root))
    admin = free_port()
    settings = {"repository": root, "dtype": "auto", "model_load_timeout_seconds": SECONDS, "admin_port": admin}
    with serving({}, prelude=prelude, **settings) as server:
        server.wait_ready()
        version = answer(server.url)
        fill(root)
        done = httpx.post(f"http://127.0.0.1:{admin}/v1/repository/poll", timeout=300).json()["done"]
        assert f"serves zz-late ({version})" in done
        said = dict(re.fullmatch(r"failed (\S+): (.*)", line).groups() for line in done if line.startswith("failed"))
        assert said.keys() == LINES.keys()
        assert len(done) == len(said) + 1
        for name, line in LINES.items():
            assert re.search(line, said[name]), (name, said[name])
            assert sum(f'"{name} cannot be served' in logged for logged in server.log) == 1
            assert server.metric(f'milkweed_model_load_failures_total{{model="{name.partition("/")[0]}"}}') == 1.0
        assert answer(server.url) == version
        assert httpx.get(server.url + "/livez").status_code == 200
        listed = httpx.get(f"http://127.0.0.1:{admin}/v1/repository").json()["models"]
        assert {each["name"]: each["error"] for each in listed if not each["serves"]}["arena"] == said["arena"]
    for name in LINES.keys() - {"sound/2", *STILL_THERE}:  # a start with all of them takes as long again
        shutil.rmtree(root / name)
    with serving({}, prelude=HOOK + paths, start_with_failures=True, **settings) as server:
        server.wait_ready()
        assert answer(server.url) == version
        server.wait_log("sound/2 cannot be served, what is sound goes on: " + LINES["sound/2"])
        ready = {name: httpx.get(f"{server.url}/v2/models/{name}/ready").status_code for name in ("sound", "arena")}
        assert ready == {"sound": 200, "arena": 404}
        assert httpx.get(server.url + "/readyz").status_code == 200
        index = httpx.post(server.url + "/v2/repository/index").json()
        assert {each["name"] for each in index if each["state"] == "UNAVAILABLE"} == {*STILL_THERE, "sound"}
    assert os.listdir(tmp_path / "cache/milkweed/opening")


def test_a_bundle_that_ends_the_start_is_left_out_of_the_next_one(serving: Serve, tmp_path: Path) -> None:
    root = tmp_path / "models"
    shutil.copytree(DEMO, root / "sound" / "1")
    shutil.copytree(DEMO, root / "sound" / "2")
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    paths = f"os.environ |= {{'PYTHONPATH': {str(tmp_path)!r}, 'XDG_CACHE_HOME': {str(tmp_path / 'cache')!r}}}\n"
    settings = {"repository": root, "dtype": "auto"}
    with serving({}, prelude=HOOK + paths, **settings) as server:
        assert server.exit() == -11
    with serving({}, prelude=HOOK + paths, **settings) as server:
        server.wait_ready()
        answer(server.url)
        server.wait_log("sound/2 cannot be served, what is sound goes on: " + LINES["sound/2"])
    (tmp_path / "sitecustomize.py").write_text("")  # mended: as if the library were another one
    with serving({}, prelude=paths.replace("os.", "import os; os."), **settings) as server:
        server.wait_ready()
        assert not [line for line in server.log if "cannot be served" in line]
    assert not os.listdir(tmp_path / "cache/milkweed/opening")


def answer(url: str) -> str:
    """The version that answers for the sound model."""
    answered = httpx.post(url + "/classify?model=sound", content=encoded("JPEG"))
    assert answered.status_code == 200, answered.text
    return str(answered.json()["version"])
