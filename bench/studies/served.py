"""A real model behind this server and behind others: first correct answer, images a second, memory, accuracy.

    python -m milkweed.bench.studies.served PHOTOS torch=./deit openvino=./deit-int8 milkweed=./deit-fast \\
        --graph ./deit-int8 --peers litserve triton torchserve

Each BACKEND=BUNDLE is served by our server; each peer serves the graph of `--graph` in OpenVINO. All are
asked for each photograph alone; that also warms the page cache and the caches of compiled graphs. Then, in turns, each
is started until the first photograph has the class that the first server gave it, and gets requests, drawn alike,
from 1 and from 32 clients on the same cores. The figures are medians of the turns; failures are summed.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from ...jobs.dataset import folder_samples, spaced
from ...models import read_config
from ..load.connection import ConnectionFailed, learned
from ..load.plan import Plan, Shot
from ..load.processes import run_plan
from ..machine import about, save
from ..peers.catalogue import PEERS, running_peer
from ..process import START_SECONDS, running_server, usage
from ..server.benched_server import BenchedServer
from ..server.request import ANSWER, Request

Row = dict[str, Any]
CLIENTS, ASK_EVERY_SECONDS = (1, 32), 0.01
REQUEST = Request(seconds=600, timeout_ms=60_000)
COUNTS = [f"{name}_of_{clients}" for name in ("failed", "other_than_alone") for clients in CLIENTS]
PEER_SETTINGS = "dense graph in OpenVINO, all cores a batch, Pillow on all cores"


@dataclass
class Server:
    """One server under comparison.

    Args:
        row: what is known of it before it runs, and what becomes known.
        started: runs it; yields its first process and URL when it says that it is ready.
        shots: a request for each photograph, with the answer once it has been asked for alone.
        answer: finds the class, as in `Plan`.
    """

    row: Row
    started: Callable[[], AbstractContextManager[tuple[int, str]]]
    shots: tuple[Shot, ...]
    path: str
    answer: bytes
    turns: list[Row] = field(default_factory=list)

    def plan(self, url: str) -> Plan:
        """Requests to it while it runs."""
        return REQUEST.plan(url, self.shots, self.path, self.answer)


def ours(backend: str, bundle: Path, photos: Sequence[bytes]) -> Server:
    """Our server with a bundle in one of its backends."""

    @contextmanager
    def started() -> Iterator[tuple[int, str]]:
        with running_server(bundle, {"backend": backend}) as (process, url):
            with urllib.request.urlopen(url + "/v1/models") as answer:
                (model,) = json.loads(answer.read())["models"]
            row["settings"] = f"{model['kernels'] or backend}, {model['lanes']}"
            yield process.pid, url

    name = f"milkweed serve --backend {backend}, {bundle.name}"
    row = {"server": name, "version": read_config(bundle).version, "settings": None}
    return Server(row, started, tuple(Shot(photo, "image/jpeg") for photo in photos), "/classify?top_k=1", ANSWER)


def theirs(name: str, graph: Path, venvs: Path, cache: Path, photos: Sequence[bytes]) -> Server:
    """A peer with the graph of a bundle."""
    peer = PEERS[name]
    row = {"server": name, "version": peer.version(venvs), "settings": f"{peer.settings}; {PEER_SETTINGS}"}
    started = partial(running_peer, peer, venvs, graph, cache=cache)
    return Server(row, started, peer.photo_shots(photos), peer.path, peer.answer)


def measure(
    servers: Sequence[Server], targets: Sequence[int | None], turns: int, requests: int, keep: Callable[[Row], None]
) -> None:
    """Measure all in turns, after a turn for accuracy; one that cannot be measured has a row that says why.

    Args:
        targets: the classes of the photographs, where they are known.
        requests: of a row of load.
        keep: called with what is new.
    """
    right: list[int] = []
    for number in range(turns + 1):
        for server in servers:
            if "skipped" in server.row:
                continue
            try:
                news = turn(server, right[0], requests) if number else accuracy(server, targets, right)
            except (RuntimeError, ConnectionFailed, TimeoutError) as error:
                news = {"skipped": str(error)}
            server.row |= news
            if number and "skipped" not in news:
                server.turns.append(news)
                server.row |= over_turns(server.turns)
            keep({"server": server.row["server"], **news})


def over_turns(turns: Sequence[Row]) -> Row:
    """The medians of the turns; failures are summed."""
    names = [name for name in turns[0] if not name.startswith("statuses")]
    columns = {name: [figures[name] for figures in turns] for name in names}
    return {name: (sum if name in COUNTS else median)(values) for name, values in columns.items()}


def accuracy(server: Server, targets: Sequence[int | None], right: list[int]) -> Row:
    """Ask for each photograph alone; the shares of answers that are right and that are the first server's.

    Args:
        right: what the first server answers; empty until there is one.

    Raises:
        RuntimeError: it is not installed, does not start, or does not answer.
    """
    if server.row["version"] is None:
        raise RuntimeError(f"not installed: python -m milkweed.bench.peers setup {server.row['server']}")
    with server.started() as (_, url):
        plan = server.plan(url)
        first_answer(plan)
        server.shots = learned(plan).shots
    answers = [int(shot.expected) for shot in server.shots]
    right += [] if right else answers
    shares = {"top1": share(answers, targets), "as_first": share(answers, right)}
    return {"settings": server.row["settings"], "photographs": len(answers), **shares}


def share(answers: Sequence[int], right: Sequence[int | None]) -> float | None:
    """The share of answers that are right; None where it is not known what is."""
    return None if None in right else sum(a == b for a, b in zip(answers, right, strict=True)) / len(answers)


def turn(server: Server, right: int, requests: int) -> Row:
    """Start it, ask for the first photograph until there is an answer, put it under load: what all that took.

    Raises:
        RuntimeError: there is no answer in time, or not the right class.
    """
    began = time.perf_counter()
    with server.started() as (pid, url):
        plan = server.plan(url)
        first = first_answer(plan)
        seconds, used = time.perf_counter() - began, usage(pid)
        if first != right:
            raise RuntimeError(f"its first answer was class {first}, not {right}")
        row = {
            "start_seconds": round(seconds, 2),
            "start_cpu_seconds": round(used.cpu_seconds, 2),
            "start_rss_mb": round(used.rss_bytes / 1e6),
            "start_pss_mb": round(used.pss_bytes / 1e6),
        }
        for clients in CLIENTS:
            loaded = under_load(replace(plan, connections=clients, requests=requests), pid)
            row |= {f"{name}_of_{clients}": value for name, value in loaded.items()}
        return row


def first_answer(plan: Plan) -> int:
    """Ask for the first photograph until there is an answer; the class in it. Raises as `learned`."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            return int(learned(replace(plan, shots=plan.shots[:1])).shots[0].expected)
        except (RuntimeError, ConnectionFailed, TimeoutError):  # some say they are ready before they are
            if time.monotonic() > end:
                raise
            time.sleep(ASK_EVERY_SECONDS)


def under_load(plan: Plan, pid: int) -> Row:
    """Send the plan's requests, back to back on each of its connections.

    Raises:
        RuntimeError: none was answered.
    """
    run_plan(replace(plan, requests=2 * plan.connections))  # a warm-up
    row = BenchedServer("", plan, REQUEST, pid).row("closed loop", "", plan)
    latency = row["latency_ms"]
    if latency is None:
        raise RuntimeError(f"no answer under load: {row['statuses']}")
    return {
        "images_per_second": row["goodput"],
        "p50_ms": latency["p50"],
        "p99_ms": latency["p99"],
        "cpu_ms": round(row["cpu_ms_per_request"], 1),
        "rss_mb": round(row["rss_mb"][1]),
        "pss_mb": round(row["pss_mb"]),
        "statuses": row["statuses"],
        "failed": row["good_failed"],
        "other_than_alone": row["wrong_answers"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each row when it is measured, and write those that there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder of JPEGs, named by class or not")
    parser.add_argument("ours", nargs="+", metavar="BACKEND=BUNDLE")
    parser.add_argument("--graph", type=Path, help="the bundle whose graph the peers serve")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=[], metavar="NAME")
    parser.add_argument("--venvs", type=Path, default=Path("/tmp/peers"), help="of bench.peers setup")
    parser.add_argument("--most", type=int, default=500, help="photographs, evenly spaced")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=500, help="of each row of load")
    parser.add_argument("--out", type=Path, default=Path("bench/results/served.json"))
    options = parser.parse_args(arguments)
    if options.peers and options.graph is None:
        parser.error("--peers needs --graph")
    pairs, load = [pair.partition("=") for pair in options.ours], os.getloadavg()
    samples = spaced(folder_samples(options.photos, read_config(pairs[0][2])), options.most)
    photos = [sample.path.read_bytes() for sample in samples]
    with tempfile.TemporaryDirectory() as folder:
        servers = [ours(backend, Path(bundle), photos) for backend, _, bundle in pairs]
        servers += [theirs(name, options.graph, options.venvs, Path(folder), photos) for name in options.peers]

        def keep(row: Row) -> None:
            print(json.dumps(row), flush=True)
            document = {**about("served", load), "turns": options.turns, "requests": options.requests}
            document["rows"] = [server.row for server in servers]
            save(options.out, document)

        measure(servers, [sample.target for sample in samples], options.turns, options.requests, keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
