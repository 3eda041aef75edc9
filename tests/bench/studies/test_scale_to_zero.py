"""Scale to zero: nothing is lost where a server answers what it takes, and what is lost is counted."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from milkweed.bench.studies.scale_to_zero import Proxy, histogram, main, parsed, schedule

ROOT = Path(__file__).resolve().parents[3]
REQUEST = b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"

# Its requests are counted in a file, over all lives. After SIGTERM it takes some for `grace` seconds, then lets nobody
# in as ours does, and is there for a little longer. The request of the number `fault_at` meets the fault.
FAKE = """
import os, signal, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from milkweed.server.http.transport.sockets import drop_newcomers

counted, port, grace, linger = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
fault, fault_at = sys.argv[5], int(sys.argv[6])

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, b"{}")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        with open(counted, "ab") as file:
            file.write(b".")
            number = file.tell()
        faulty = fault if number == fault_at else ""
        if faulty == "dies":
            os._exit(3)
        if faulty != "cuts":
            self.answer(503 if faulty == "refuses" else 200, b'{"index": 3}' if faulty == "lies" else b'{"index": 8}')

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

def stop():
    time.sleep(grace)
    drop_newcomers(server.socket)
    time.sleep(0.2)
    server.socket.close()
    time.sleep(linger)
    os._exit(4 if fault == "ends badly" else 0)

server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stop).start())
try:
    server.serve_forever(0.01)
except (OSError, ValueError):
    time.sleep(9)
"""

Fake = Callable[..., str]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """The command of a fake server."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE)

    def command(grace: float = 0.1, linger: float = 0.1, fault: str = "none", fault_at: int = 0) -> str:
        return f"{sys.executable} -P {script} {tmp_path / 'counted'} {{port}} {grace} {linger} '{fault}' {fault_at}"

    return command


def run(command: str, starts: int, out: Path) -> tuple[int, dict[str, Any]]:
    """The exit code and the JSON of a run with short bursts."""
    times = ["--idle-seconds", "0.1", "--burst-seconds", "0.3", "--rate", "10"]
    code = main(["--starts", str(starts), "--command", command, "--out", str(out), *times])
    return code, json.loads(out.read_text())


def test_nothing_is_lost_by_a_server_that_answers_what_it_takes(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(fake(), 4, tmp_path / "out.json")
    assert code == 0, found
    assert found["lost"] == found["unclean_ends"] == 0
    assert found["starts"] == len(found["lives"]) >= 4
    assert found["outcomes"] == {"200": found["requests"]}
    # Eight are the reference's. What the servers counted was sent once each, whoever was handed on.
    assert (tmp_path / "counted").stat().st_size == found["requests"] + 8
    for life in found["lives"]:
        assert 0 < life["ready_ms"] < life["first_answer_ms"] < 5000
        assert 400 < life["stop_ms"] < 3000
        assert life["rss_mb"] > 3
    assert found["first_answer_ms"]["p50"] <= found["first_answer_ms"]["p90"] <= found["first_answer_ms"]["p100"]
    printed = capsys.readouterr().out
    assert f"{found['requests']} requests, 0 lost" in printed
    assert sum(int(line.split()[2]) for line in printed.splitlines() if " ms " in line) == found["starts"]


@pytest.mark.parametrize(
    ("fault", "outcome", "unclean"),
    [("lies", "wrong", 0), ("refuses", "503", 0), ("cuts", "502", 0), ("dies", "502", 1)],
)
def test_a_planted_loss_is_counted_and_never_sent_again(
    fake: Fake, tmp_path: Path, fault: str, outcome: str, unclean: int
) -> None:
    code, found = run(fake(fault=fault, fault_at=9), 1, tmp_path / "out.json")  # the first one behind the reference
    assert code == 1
    assert (found["lost"], found["unclean_ends"]) == (1, unclean), found
    assert found["outcomes"].get(outcome) == 1
    assert (tmp_path / "counted").stat().st_size == found["requests"] + 8


def test_another_exit_code_than_0_is_a_failure(fake: Fake, tmp_path: Path) -> None:
    code, found = run(fake(fault="ends badly"), 1, tmp_path / "out.json")
    assert code == 1
    assert found["lost"] == 0
    assert {life["exit_code"] for life in found["lives"]} == {4}


def in_a_loop(command: str, idle_seconds: float, told: Callable[[Proxy], Awaitable[None]]) -> Proxy:
    """What a proxy is after it was told something and its servers have ended."""

    async def go() -> Proxy:
        proxy = Proxy(command, idle_seconds)
        await told(proxy)
        await asyncio.gather(*(life.task for life in proxy.lives))
        return proxy

    return asyncio.run(go())


async def until(true: Callable[[], bool]) -> None:
    """Wait for what a thread of the proxy does."""
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)


def test_requests_are_held_for_one_server_until_it_is_ready(fake: Fake) -> None:
    async def told(proxy: Proxy) -> None:
        answers = await asyncio.gather(*(proxy.answer(REQUEST) for _ in range(5)))
        assert {answer.status for answer in answers} == {"200"}
        assert len(proxy.lives) == 1

    assert in_a_loop(fake(), 0.05, told).handed_on == 0


def test_a_request_while_the_server_stops_is_its_own_as_long_as_it_lets_anybody_in(fake: Fake) -> None:
    async def told(proxy: Proxy) -> None:
        await proxy.answer(REQUEST)
        await until(lambda: proxy.lives[0].stopping)
        assert (await proxy.answer(REQUEST)).status == "200"

    proxy = in_a_loop(fake(grace=1), 0.05, told)
    assert (len(proxy.lives), proxy.answered_while_stopping, proxy.handed_on) == (1, 1, 0)


def test_a_request_that_is_not_let_in_starts_the_next_server_at_once(fake: Fake) -> None:
    async def told(proxy: Proxy) -> None:
        await proxy.answer(REQUEST)
        await until(lambda: proxy.lives[0].stopping)
        while len(proxy.lives) == 1:
            assert (await proxy.answer(REQUEST)).status == "200"

    proxy = in_a_loop(fake(grace=0.05, linger=2), 0.05, told)
    assert proxy.handed_on == 1
    assert [life.row["beside_the_one_before"] for life in proxy.lives] == [False, True]
    assert {life.row["exit_code"] for life in proxy.lives} == {0}


def test_a_server_that_does_not_start_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{sys.executable} -c 'raise SystemExit(\"no such bundle\")'"
    assert main(["--command", command, "--out", str(tmp_path / "out.json")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("scale_to_zero: a good request")
    assert "got 502: b'the server did not start: no such bundle'" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out.json").exists()


def test_bursts_begin_around_the_stop_and_are_drawn_beforehand() -> None:
    options = parsed(["--burst-seconds", "1", "--rate", "0.0001"])  # one request a burst
    starts = list(islice(schedule(options, 3.0, 2.0), 400))
    assert starts == list(islice(schedule(options, 3.0, 2.0), 400))
    after_the_signal = [later - sooner - 3.5 for sooner, later in pairwise(starts)]
    assert -0.4 <= min(after_the_signal) < -0.35
    assert 2.5 < max(after_the_signal) <= 2.6


def test_every_value_is_in_a_bar() -> None:
    rows = list(histogram([100.0, 101.0, 220.0]))
    assert rows[0].split() == ["100", "ms", "2", "#" * 50]
    assert rows[-1].split() == ["210", "ms", "1", "#" * 25]
    assert len(rows) == 12
    assert len(list(histogram([5.0]))) == 1


def test_the_committed_run_is_what_the_page_says() -> None:
    found = json.loads((ROOT / "bench/results/scale_to_zero.json").read_text(encoding="utf-8"))
    assert (found["lost"], found["unclean_ends"]) == (0, 0)
    page = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    assert f"{found['starts']} starts, {found['requests']:,} requests, 0 lost" in page
    seconds = [f"{found['first_answer_ms'][name] / 1e3:.1f}" for name in ("p50", "p90", "p100")]
    assert "median {} s, p90 {} s, at most {} s".format(*seconds) in page


@pytest.mark.skipif("MILKWEED_TEST_DEPLOY" not in os.environ, reason="slow: MILKWEED_TEST_DEPLOY=1")
def test_the_demo_starts_twice_and_loses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["--starts", "2", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["lost"] == 0
    assert found["starts"] >= 2
    assert found["requests"] >= 2
