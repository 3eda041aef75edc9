"""Measures what attacks do to a server: its memory, seconds and probes, and the answers that other clients get."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from ...models.bundle import save_bundle
from ...models.config import BundleConfig
from ...models.labels import default_labels
from ...models.registry import create_model
from ..bodies import make_jpeg
from ..load.plan import Plan, Shot
from ..load.processes import Clients
from ..load.summary import summary
from ..process import free_port, running_server
from ..server.bundles import TINY, TINY_PREPROCESS
from .hostile import ATTACKS, CLASSES, PARTS, Target


@dataclass
class Seen:
    """A server under attack, and the most memory and the slowest probe that were seen."""

    pid: int
    url: str
    peak_bytes: int = 0
    slowest_probe_seconds: float = 0.0

    @contextlib.contextmanager
    def watching(self) -> Iterator["Seen"]:
        """Read the server's memory and probe it, again and again, for as long as the context lasts."""
        over = threading.Event()
        looks = [threading.Thread(target=look, args=(over,)) for look in (self._memory, self._probe)]
        for look in looks:
            look.start()
        try:
            yield self
        finally:
            over.set()
            for look in looks:
                look.join()

    def rss_bytes(self) -> int:
        """Add up the resident memory of the server and its children."""
        process, found = psutil.Process(self.pid), 0
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += each.memory_info().rss
        return found

    def _memory(self, over: threading.Event) -> None:
        while not over.wait(0.01):
            self.peak_bytes = max(self.peak_bytes, self.rss_bytes())

    def _probe(self, over: threading.Event) -> None:
        at = urlsplit(self.url)
        while not over.wait(0.02):
            began = time.monotonic()
            with (
                contextlib.suppress(OSError),
                contextlib.closing(http.client.HTTPConnection(at.hostname or "", at.port, timeout=120)) as connection,
            ):
                connection.request("GET", "/livez")
                connection.getresponse().read()
            self.slowest_probe_seconds = max(self.slowest_probe_seconds, time.monotonic() - began)


def wide_bundle(path: Path) -> Path:
    """Save a tiny ViT of 21,000 classes."""
    arch, args = "deit_tiny_patch16_224", {**TINY, "num_classes": CLASSES}
    config = BundleConfig(arch=arch, arch_args=args, preprocess=TINY_PREPROCESS)
    save_bundle(path, create_model(arch, **args), config, default_labels(CLASSES))
    return path


@contextlib.contextmanager
def attacked(bundle: Path, settings: dict[str, Any]) -> Iterator[tuple[Target, Seen]]:
    """Run a server that has all its ports open."""
    ports = {"metrics_port": free_port(), "grpc_port": free_port()}
    with running_server(bundle, {**ports, **settings}) as (process, url):
        at = urlsplit(url)
        yield Target(at.hostname or "", at.port or 0, **ports), Seen(process.pid, url)


def attacker(names: list[str], target: Target, seconds: float = 0.0) -> "subprocess.Popen[str]":
    """Start a process that attacks for so many seconds, with 0 once, and prints the outcomes as JSON."""
    command = [sys.executable, "-m", "milkweed.bench.attacks", "--only", ",".join(names)]
    command += ["--against", json.dumps(vars(target)), "--for-seconds", str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONSAFEPATH": "1"})


def measure_each(names: list[str], bundle: Path) -> list[dict[str, Any]]:
    """Run each attack once, on a server of its own; returns and prints a row for each."""
    rows = []
    for name in names:
        with attacked(bundle, ATTACKS[name].settings) as (target, seen):
            for _ in range(3):
                target.ask("POST", "/classify", make_jpeg(60_000))
            before = seen.rss_bytes()
            with seen.watching(), attacker([name], target) as process:
                outcomes, _ = process.communicate()
            found = json.loads(outcomes)
            row = {
                "attack": name,
                "seconds": round(found["seconds"], 2),
                "livez_seconds": round(seen.slowest_probe_seconds, 2),
                "peak_mb": round((seen.peak_bytes - before) / 1e6),
                "left_mb": round((seen.rss_bytes() - before) / 1e6),
                "outcomes": found["outcomes"],
            }
        rows.append(row)
        print(
            "{attack:13} {seconds:7} s  livez {livez_seconds:6} s  peak +{peak_mb:5} MB  left +{left_mb:5} MB  "
            "{outcomes}".format(**row),
            flush=True,
        )
    return rows


def measure_files(folders: list[Path], bundle: Path) -> dict[str, Any]:
    """Send every file of some folders between two good photographs, whose answers must not change by a bit."""
    good, rows = make_jpeg(60_000), []
    with attacked(bundle, {}) as (target, seen):

        def post(*bodies: bytes) -> tuple[int, Any]:
            parts = [
                b'--b\r\nContent-Disposition: form-data; name="i"; filename="f"\r\n\r\n%b\r\n' % body for body in bodies
            ]
            connection = http.client.HTTPConnection(target.host, target.port, timeout=60)
            with contextlib.closing(connection):
                connection.request("POST", "/classify", b"".join(parts) + b"--b--", PARTS)
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())

        wanted = post(good, good)[1]["results"]
        found_in = {path: folder for folder in folders for path in folder.rglob("*") if path.is_file()}
        for path, folder in sorted(found_in.items()):
            body, before = path.read_bytes(), seen.rss_bytes()
            seen.peak_bytes, began = before, time.monotonic()
            with seen.watching():
                status, found = post(body)
                alone = time.monotonic() - began
            seen.peak_bytes, error = max(seen.peak_bytes, before), found.get("error", {}).get("code")
            together = post(good, body, good)[1].get("results", [])
            same = [together[0], together[2]] == wanted if len(together) == 3 else None
            rows.append(
                {
                    "file": str(path.relative_to(folder)),
                    "status": status,
                    "code": error,
                    "seconds": round(alone, 3),
                    "mb": round((seen.peak_bytes - before) / 1e6),
                    "neighbours_same": same,
                }
            )
    return {
        "files": len(rows),
        "statuses": dict(Counter(str(row["status"]) for row in rows)),
        "server_errors": [row for row in rows if row["status"] >= 500],
        "slowest": sorted(rows, key=lambda row: -row["seconds"])[:3],
        "largest": sorted(rows, key=lambda row: -row["mb"])[:3],
        "neighbours_changed": [row for row in rows if row["neighbours_same"] is not True],
    }


def soak(minutes: float, bundle: Path, names: list[str]) -> dict[str, Any]:
    """Send good requests at half of the capacity, first alone and then beside all attacks in a loop."""
    shots = tuple(Shot(make_jpeg(size), "image/jpeg") for size in (60_000, 110_000, 160_000))
    with attacked(bundle, {}) as (target, seen):
        plan = Plan(targets=((target.host, target.port),), path="/classify", shots=shots, seconds=10, connections=8)
        capacity = _row(plan)["goodput"]
        open_loop = {**vars(plan), "rate": capacity / 2, "connections": 512}
        alone = _row(Plan(**{**open_loop, "seconds": min(120.0, 60 * minutes)}))
        memory: list[int] = []
        with seen.watching(), attacker(names, target, 60 * minutes) as process:
            with _sampled(memory, seen):
                beside = _row(Plan(**{**open_loop, "seconds": 60 * minutes}))
            outcomes = json.loads(process.communicate()[0])
    third = max(1, len(memory) // 3)
    return {
        "capacity": capacity,
        "alone": alone,
        "beside": beside,
        "rounds": outcomes["rounds"],
        "attack_outcomes": outcomes["outcomes"],
        "p99_ratio": round(beside["latency_ms"]["p99"] / alone["latency_ms"]["p99"], 2),
        "livez_seconds": round(seen.slowest_probe_seconds, 2),
        "rss_mb": {"first third": round(max(memory[:third]) / 1e6), "last third": round(max(memory[-third:]) / 1e6)},
    }


def _row(plan: Plan) -> dict[str, Any]:
    with Clients(plan, 1) as clients:
        clients.begin()
        return summary(plan, clients.results())


@contextlib.contextmanager
def _sampled(memory: list[int], seen: Seen, every_seconds: float = 2.0) -> Iterator[None]:
    over = threading.Event()

    def sample() -> None:
        while not over.wait(every_seconds):
            memory.append(seen.rss_bytes())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
