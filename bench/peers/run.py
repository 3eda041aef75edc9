"""Runs the same rows on milkweed and on each peer, one after the other, and puts them in one document."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..http_overhead import running_server
from ..load.endpoints import target_of
from ..load.plan import Plan
from ..load.single import learned
from ..process import machine
from ..serving import sections as rows_of
from ..serving.bodies import array_bodies, pictures, shots
from ..serving.bundles import TINY_SIZE
from ..serving.run import ANSWER
from ..serving.sections import Options
from ..serving.subject import Say, Subject
from .catalogue import PEERS
from .install import missing, version_of
from .process import running_peer
from .weights import export

DEFAULT_OUT = Path("bench/results/peers.json")
OURS = "milkweed"
IMAGES = 8

SLOW = """
import time
from milkweed.server.lanes import Lanes
quick = Lanes.run
def slow(self, pixels):
    time.sleep({seconds})
    return quick(self, pixels)
Lanes.run = slow
"""
"""What makes our server's device as slow as the peers'. Not in the model: of a recorded forward no Python is left."""


@dataclass(frozen=True)
class Request:
    """What `run` is asked for.

    Args:
        peers: names, ours among them.
        venvs: folder of the peers' environments.
        rate: of the open-loop row that all get alike, requests a second.
        settings: of our server, by field name.
        device_ms: that a batch takes besides, without the CPU, in the overload rows: so that the device is what there
            is too little of, not the cores that the client needs too.
    """

    peers: Sequence[str]
    venvs: Path
    seconds: float = 10.0
    concurrency: int = 32
    clients: int = 1
    rate: float = 250.0
    timeout_seconds: float = 10.0
    device_ms: float = 50.0
    settings: dict[str, Any] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    seed: int = 0


def run(request: Request, say: Say = lambda row: None, note: Callable[[str], None] = print) -> dict[str, Any]:
    """Measure each in turn. One that cannot be measured is a row that says why.

    Args:
        note: gets a line for each server that is started or skipped.
    """
    servers: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        bundle, weights = export(Path(folder))
        for name in request.peers:
            why = None if name == OURS else missing(PEERS[name], request.venvs)
            load_before = round(os.getloadavg()[0], 2)
            rows: list[dict[str, Any]] = []
            if why is None:
                note(f"{name}: starting")
                try:
                    with _started(name, request, bundle, weights) as (pid, url):
                        _measure(_subject(name, request, url, pid, rows, say), request)
                    with _started(name, request, bundle, weights, request.device_ms) as (pid, url):
                        _overload(_subject(name, request, url, pid, rows, say), request)
                except RuntimeError as error:
                    why = str(error)
            if why is not None:
                note(f"{name}: skipped: {why}")
            servers.append(
                {**_described(name, request), "load_average_before": load_before, "skipped": why, "rows": rows}
            )
    return {
        "benchmark": "peers",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "settings": asdict(request) | {"venvs": str(request.venvs)},
        "servers": servers,
    }


def _measure(subject: Subject, request: Request) -> None:
    """What is asked of every server."""
    subject.warm_up()
    most = rows_of.capacity(subject)
    rows_of.load(subject, most, Options(arrivals=request.options.arrivals, rates=(request.rate,)))
    rows_of.malformed(subject, most, request.options)


def _overload(subject: Subject, request: Request) -> None:
    """With a slow device: its capacity, then twice that."""
    subject.warm_up()
    most = rows_of.capacity(subject, "slow device,", section="slow")
    rows_of.overload(subject, most, request.options, tells=subject.name == OURS)


@contextmanager
def _started(
    name: str, request: Request, bundle: Path, weights: Path, device_ms: float = 0.0
) -> Iterator[tuple[int, str]]:
    if name == OURS:
        prelude = SLOW.format(seconds=device_ms / 1e3) if device_ms else ""
        with running_server(bundle, request.settings, prelude) as (process, url):
            yield process.pid, url
    else:
        with running_peer(PEERS[name], request.venvs, weights, device_ms) as found:
            yield found


def _subject(name: str, request: Request, url: str, pid: int, rows: list[dict[str, Any]], say: Say) -> Subject:
    images = pictures(TINY_SIZE, IMAGES)
    if name == OURS:
        path, answer, requests = "/classify?top_k=1", ANSWER, shots("npy", array_bodies(images))
    else:
        peer = PEERS[name]
        path, answer, requests = peer.path, peer.answer, peer.shots(images)
    plan = Plan(
        targets=(target_of(url),),
        path=path,
        shots=requests,
        seconds=request.seconds,
        connections=request.concurrency,
        timeout_seconds=request.timeout_seconds,
        answer=answer,
        seed=request.seed,
    )
    return Subject(name, learned(plan), (pid,), request.clients, request.seconds, 1, say, rows)


def _described(name: str, request: Request) -> dict[str, Any]:
    if name == OURS:
        return {"name": name, "version": version("milkweed"), "body": "npy", "batching": "as it comes"}
    peer = PEERS[name]
    there = missing(peer, request.venvs) is None
    found = version_of(peer, request.venvs) if there else None
    return {"name": name, "version": found, "body": peer.body, "batching": peer.settings}
