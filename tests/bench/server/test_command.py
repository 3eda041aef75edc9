"""`milkweed bench server` end to end, small: a real server, real load, rows that hang together."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from milkweed.bench import process
from milkweed.bench.load.plan import Plan, Shot
from milkweed.bench.process import usage
from milkweed.bench.server.benched_server import BenchedServer
from milkweed.bench.server.request import ANSWER, Request
from milkweed.bench.server.run import run
from milkweed.bench.server.sections import growth_share, reloading, rolling
from milkweed.cli import main

from ...support.fake_server import Answering, fake_server
from ...support.waiting import eventually

SMALL = ["--seconds", "0.5", "--concurrency", "64", "--overload-timeout-ms", "300"]


@pytest.mark.slow
def test_the_command_measures_a_server(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, picture = tmp_path / "results" / "server.json", tmp_path / "server.svg"
    arguments = ["bench", "server", *SMALL, "--rates", "60", "--body", "npy", "--images", "2"]
    arguments += ["--sections", "load,malformed", "--malformed", "0.3", "--set", "drain-grace-seconds=0"]
    monkeypatch.setattr("milkweed.bench.server.benched_server.WARM_UP_SECONDS", 0.2)
    monkeypatch.setattr("sys.argv", ["milkweed", *arguments, "--api-key", "secret"])
    code = main([*arguments, "--api-key", "secret", "--out", str(out), "--plot", str(picture)])
    printed, err = capfd.readouterr()
    document = json.loads(out.read_text())
    rows = document["rows"]
    assert code == (1 if document["complaints"] else 0), err
    assert not [words for words in document["complaints"] if "client" not in words], err  # this machine may be busy
    searched, others = split(rows)
    assert [(row["section"], row["server"]) for row in others] == [
        (name, "npy") for name in ("load", *["malformed"] * 2)
    ]
    assert (document["benchmark"], document["body"]["images"]) == ("server", 2)
    assert document["capacity"] in {row["goodput"] for row in searched}
    for row in (searched[0], *others):
        assert row["statuses"] == {"200": row["good_sent"]}
        assert row["good_sent"] > 5
        assert row["cpu_ms_per_request"] > 0
        assert min(row["rss_mb"]) > 50
        assert 0 < row["stage_cpu_ms_per_request"]["forward"] < row["cpu_ms_per_request"]
        assert row["latency_ms"]["p50"] <= row["latency_ms"]["p99"] <= row["latency_ms"]["max"]
    assert others[0]["rate"] == 60
    assert set(rows[-1]["malformed_statuses"]) <= {"400", "415", "422"}
    assert sum(rows[-1]["malformed_statuses"].values()) > 0
    assert "secret" not in out.read_text()
    assert document["command"].endswith("--api-key '***'")
    assert printed.count("malformed") >= 2
    assert picture.stat().st_size > 10_000


def split(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows that search for the capacity, as many as this machine needs today, and those after them."""
    first = next(number for number, row in enumerate(rows) if row["section"] != "capacity")
    return rows[:first], rows[first:]


def answering(ending: threading.Event, asked: Counter[bool] | None = None) -> Answering:
    """Answer as milkweed does, with the body's length as the class, and be not ready once the server is ending.

    `asked`: counts questions whether it is ready, by whether it was ending.
    """
    asked = Counter() if asked is None else asked

    async def answer(number: int, body: bytes) -> bytes:
        asked[ending.is_set()] += not body
        if not body and ending.is_set():
            return b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
        said = b'{"results": [{"predictions": [{"index": %d}]}]}' % len(body)
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said)

    return answer


@pytest.mark.slow
def test_against_a_url_there_is_no_cpu() -> None:
    with fake_server(answering(threading.Event())) as fake:
        usual_request = Request(url=f"http://127.0.0.1:{fake.port}", seconds=0.5, rates=(60,))
        assert usual_request.measured == ["capacity", "load", "overload", "malformed"]
        document = run(replace(usual_request, body=("npy",), sections=("capacity", "load"), concurrency=256))
        with pytest.raises(ValueError, match="section rolling starts servers of its own"):
            run(replace(usual_request, sections=("rolling",)))
    assert [row["section"] for row in split(document["rows"])[1]] == ["load"]
    for row in document["rows"]:
        assert row["statuses"] == {"200": row["sent"]}
        assert (row["cpu_ms_per_request"], row["rss_mb"], row["wrong_answers"]) == (None, None, 0)


def idle_server(request: Request) -> BenchedServer:
    plan = Plan((("127.0.0.1", 1),), "/classify", (Shot(b"1234", ""),), seconds=1.0, answer=ANSWER)
    return BenchedServer("fake", plan, request)


KNOWN = 5
"""So many questions of a client take it longer than the time after which their answer counts."""


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.slow
def test_rolling_restarts_count_what_is_lost(monkeypatch: pytest.MonkeyPatch, stays: bool) -> None:
    """A server that stays until everybody knows loses nothing; one that ends at once loses what comes after."""
    ports: list[int] = []

    @contextmanager
    def running(bundle: Path, settings: dict[str, Any]) -> Iterator[tuple[SimpleNamespace, str]]:
        ending, asked, restarted = threading.Event(), Counter[bool](), len(ports) >= 2
        ports.append(settings["port"])
        with fake_server(answering(ending, asked), settings["port"]):
            if restarted:
                eventually(lambda: asked[False] >= KNOWN)
            yield SimpleNamespace(returncode=0), f"http://127.0.0.1:{settings['port']}"
            ending.set()
            if stays and not restarted:
                eventually(lambda: asked[True] >= KNOWN)
        time.sleep(0.2)  # nobody is there

    monkeypatch.setattr("milkweed.bench.server.sections.running_server", running)
    monkeypatch.setattr("milkweed.bench.server.sections.SETTLE_SECONDS", 0.3)
    benched = idle_server(Request(restarts=2, endpoint_delay_ms=100))
    rolling(benched, Path(), rate=200)
    (row,) = benched.rows
    assert (row["restarts"], row["exit_codes"], row["wrong_answers"]) == (2, [0], 0)
    assert row["statuses"]["200"] > 100
    assert (row["lost"] == 0) is stays
    assert row["good_failed"] == row["lost"]


def test_reloads_take_turns_and_memory_is_watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    loaded: list[str] = []

    @contextmanager
    def running(bundle: None, settings: dict[str, Any]) -> Iterator[tuple[SimpleNamespace, str]]:
        assert sorted(path.name for path in Path(settings["repository"]).glob("bench/*")) == ["1", "2"]
        with fake_server(answering(threading.Event())) as fake:
            yield SimpleNamespace(pid=os.getpid()), f"http://127.0.0.1:{fake.port}"

    monkeypatch.setattr("milkweed.bench.server.sections.running_server", running)
    monkeypatch.setattr("milkweed.bench.server.sections.load_version", lambda port, number: loaded.append(number))
    monkeypatch.setattr("milkweed.bench.server.sections.SETTLE_SECONDS", 0.2)
    monkeypatch.setattr("milkweed.bench.server.benched_server.SAMPLE_SECONDS", 0.01)
    benched = idle_server(Request(reloads=3))
    reloading(benched, tmp_path / "bundle", tmp_path / "repository", rate=200)
    (row,) = benched.rows
    assert loaded == ["1", "2", "1"]
    assert (row["reloads"], row["lost"], row["good_failed"]) == (3, 0, 0)
    assert abs(row["rss_growth"]) < 1
    assert not {"memory", "timeline", "curve"} & row.keys()
    assert row["statuses"]["200"] > 50


def test_growth_of_memory_leaves_out_the_beginning() -> None:
    climbing = [(float(at), 100.0 if at < 10 else 200.0) for at in range(100)]
    assert growth_share(climbing) == 0.0
    assert growth_share([(float(at), 100.0 + at) for at in range(100)]) == pytest.approx(195 / 115 - 1, abs=0.01)
    assert growth_share(climbing[:12]) is None


def test_usage_of_a_process_that_ended_is_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert usage(child.pid).processes == 0


FORKED = "import os, sys; os.fork(); print(flush=True); sys.stdin.read()"


def test_memory_of_a_child_that_has_only_been_forked_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two children of the sandbox that began were seen with 900 MB each, the server's."""
    with subprocess.Popen([sys.executable, "-c", FORKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() + parent.stdout.readline() == b"\n\n"
        monkeypatch.setattr(process, "EXEC_SECONDS", 1e9)
        assert usage(parent.pid).processes == 1
        monkeypatch.setattr(process, "EXEC_SECONDS", 0.0)  # a worker that goes on as it was forked
        assert usage(parent.pid).processes == 2
        parent.communicate()
