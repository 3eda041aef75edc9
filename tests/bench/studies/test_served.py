"""The study of a real model behind servers: it measures ours, names what is not there, and notices wrong answers."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from milkweed.bench.load.plan import Shot
from milkweed.bench.studies import served
from milkweed.bench.studies.served import Row, Server

pytestmark = pytest.mark.slow


def test_ours_is_measured_and_a_peer_that_is_not_there_says_so(
    tmp_path: Path, colour_bundle: Path, colour_photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "served.json"
    command = [str(colour_photos), f"torch={colour_bundle}", "--graph", str(colour_bundle), "--peers", "litserve"]
    command += ["--venvs", str(tmp_path), "--most", "6", "--turns", "1", "--requests", "8", "--out", str(out)]
    assert served.main(command) == 0
    ours, peer = json.loads(out.read_text())["rows"]
    assert (ours["photographs"], ours["as_first"], ours["failed_of_32"], ours["other_than_alone_of_32"]) == (6, 1, 0, 0)
    assert 0 <= ours["top1"] <= 1
    assert ours["start_seconds"] > 0
    assert 0 < ours["p50_ms_of_1"] <= ours["p99_ms_of_1"]
    assert ours["rss_mb_of_32"] > 50
    assert peer["skipped"] == "not installed: python -m milkweed.bench.peers setup litserve"
    printed = [json.loads(line)["server"] for line in capsys.readouterr().out.splitlines()]
    assert printed == [ours["server"], "litserve", ours["server"]]
    assert str(tmp_path) not in out.read_text()


def test_peers_need_a_graph(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        served.main([str(tmp_path), f"torch={tmp_path}", "--peers", "litserve"])


def fake(name: str, wrong_from: float) -> Server:
    """A server of three photographs that answers with their bytes, and from so many requests on with a 9."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version, asked = "HTTP/1.1", 0

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            Handler.asked += 1
            answer = b'{"class": %b}' % (b"9" if Handler.asked > wrong_from else body)
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *given: Any) -> None: ...

    @contextmanager
    def started() -> Iterator[tuple[int, str]]:
        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield os.getpid(), f"http://127.0.0.1:{server.server_port}"
            server.shutdown()
            thread.join()

    row: Row = {"server": name, "version": "1", "settings": ""}
    return Server(row, started, tuple(Shot(b"%d" % number, "") for number in range(3)), "/", rb'"class": (\d+)')


def test_wrong_answers_are_noticed() -> None:
    alone = 1 + 3  # the first answer, then each photograph
    servers = [
        fake("right", 1e9),
        fake("wrong", 0),
        fake("wrong at the start", alone),
        fake("wrong later", alone + 1),
    ]
    said: list[Row] = []
    served.measure(servers, [0, 1, 7], 1, 4, said.append)
    right, wrong, start, load = (server.row for server in servers)
    assert (right["top1"], right["as_first"]) == (2 / 3, 1)
    assert (right["failed_of_1"], right["other_than_alone_of_1"], right["other_than_alone_of_32"]) == (0, 0, 0)
    assert (wrong["top1"], wrong["as_first"], wrong["skipped"]) == (0, 0, "its first answer was class 9, not 0")
    assert start["as_first"] == 1
    assert start["skipped"] == "its first answer was class 9, not 0"
    assert (load["other_than_alone_of_1"], load["other_than_alone_of_32"]) == (4, 4)
    assert [row["server"] for row in said[4:]] == [server.row["server"] for server in servers]


def test_it_is_not_known_what_is_right() -> None:
    assert served.share([1, 2], [1, None]) is None
