"""Attacks a live server, and prints what each attack costs it and whether good requests notice.

    python -m milkweed.bench.attacks                          # each attack alone, on a fresh server
    python -m milkweed.bench.attacks --only wide,parts
    python -m milkweed.bench.attacks --files DIR --files DIR  # every file of these folders, between good photographs
    python -m milkweed.bench.attacks --soak 10 [--idle 4096]  # minutes of good requests beside all attacks
    python -m milkweed.bench.attacks --soak 3 --only spin     # beside two processes that leave the server alone

Attackers are processes of their own at the lowest priority, as if they were on another machine. The seconds go from the
first byte of an attack to its last answer. The memory is what the server and its children have more than before the
attack. `livez` is the longest time that a probe took during the attack.
"""

import argparse
import contextlib
import http.client
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..bodies import make_jpeg
from ..load.connection import learned
from ..load.plan import Plan, Shot
from ..load.processes import run_plan
from ..load.requests import MULTIPART, multipart
from ..load.samples import summary
from ..ports import free_port
from ..process import repeated, running_server, usage
from ..server.bundles import tiny_bundle
from .hostile import ALL_FORMATS, ATTACKS, CONTROL, Target
from .payloads import CLASSES

KNOWN = ATTACKS | CONTROL
RESULTS = Path(__file__).parent.parent / "results"
WHOLE_ANSWER = rb'"results": (\[.*\])'
MEMORY_SECONDS, PROBE_SECONDS, SOAK_MEMORY_SECONDS = 0.01, 0.02, 1.0
"""Between two looks at the memory, two rounds of probes, and two looks of a soak: a hundred a second take a fifth of a
core from what is measured."""


@dataclass
class Seen:
    """A server under attack, and what was seen of it."""

    target: Target
    pid: int
    memory: list[int] = field(default_factory=list)
    slowest_probe_seconds: float = 0.0
    probes: Counter[str] = field(default_factory=Counter)

    @contextlib.contextmanager
    def watching(self, memory_seconds: float = MEMORY_SECONDS) -> Iterator[None]:
        """Read the server's memory and probe it, again and again, for as long as the context lasts."""
        with repeated(self._memory, memory_seconds), repeated(self._probe, PROBE_SECONDS):
            yield

    def rss_bytes(self) -> int:
        """Add up the resident memory of the server and its children."""
        return usage(self.pid, proportional=False).rss_bytes

    def _memory(self) -> None:
        self.memory.append(self.rss_bytes())

    def _probe(self) -> None:
        self.probes["/readyz " + self.target.ask("GET", "/readyz")] += 1
        began = time.monotonic()
        self.probes["/livez " + self.target.ask("GET", "/livez")] += 1
        self.slowest_probe_seconds = max(self.slowest_probe_seconds, time.monotonic() - began)


@contextlib.contextmanager
def attacked(bundle: Path, settings: dict[str, Any]) -> Iterator[tuple[Target, Seen]]:
    """Run a server that has all its ports open."""
    ports = {"metrics_port": free_port(), "grpc_port": free_port()}
    with running_server(bundle, {**ports, **settings}) as (process, url):
        at = urlsplit(url)
        target = Target(at.hostname or "", at.port or 0, **ports)
        yield target, Seen(target, process.pid)


def attacker(names: list[str], target: Target, seconds: float = 0.0) -> "subprocess.Popen[str]":
    """Start a process that attacks for so many seconds, with 0 once, and prints the outcomes as JSON."""
    command = [sys.executable, "-m", "milkweed.bench.attacks", "--only", ",".join(names)]
    command += ["--against", json.dumps(vars(target)), "--for-seconds", str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONSAFEPATH": "1"})


def measure_each(names: list[str], bundle: Path) -> list[dict[str, Any]]:
    """Run each attack once, on a server of its own; returns and prints a row for each."""
    rows = []
    for name in names:
        with attacked(bundle, KNOWN[name].settings) as (target, seen):
            for _ in range(3):
                target.ask("POST", "/classify", make_jpeg(60_000))
            before = seen.rss_bytes()
            with seen.watching(), attacker([name], target) as process:
                report = json.loads(process.communicate()[0])
            row = {
                "attack": name,
                "seconds": round(report["seconds"], 2),
                "livez_seconds": round(seen.slowest_probe_seconds, 2),
                "probes": seen.probes,
                "peak_mb": round((max(seen.memory) - before) / 1e6),
                "left_mb": round((seen.rss_bytes() - before) / 1e6),
                "outcomes": report["outcomes"],
            }
        rows.append(row)
        line = "{attack:16} {seconds:7} s  livez {livez_seconds:6} s  peak +{peak_mb:5} MB  left +{left_mb:5} MB  "
        print(line.format(**row) + str({**row["outcomes"][name], **row["probes"]}), flush=True)
    return rows


def measure_files(folders: list[Path], bundle: Path) -> dict[str, Any]:
    """Send every file of some folders between two good photographs, whose answers must not change by a bit."""
    good, rows = make_jpeg(60_000), []
    with attacked(bundle, ALL_FORMATS) as (target, seen):
        expected = _post(target, good, good)[1]["results"]
        folder_of = {path: folder for folder in folders for path in folder.rglob("*") if path.is_file()}
        for path, folder in sorted(folder_of.items()):
            body, before = path.read_bytes(), seen.rss_bytes()
            seen.memory[:], began = [before], time.monotonic()
            with seen.watching():
                status, answer = _post(target, body)
                seconds = time.monotonic() - began
            together = _post(target, good, body, good)[1].get("results", [])
            row = {
                "file": str(path.relative_to(folder)),
                "status": status,
                "code": answer.get("error", {}).get("code"),
                "seconds": round(seconds, 3),
                "mb": round((max(seen.memory) - before) / 1e6),
                "neighbours_same": [together[0], together[2]] == expected if len(together) == 3 else None,
            }
            rows.append(row)
    return {
        "files": len(rows),
        "statuses": dict(Counter(str(row["status"]) for row in rows)),
        "server_errors": [row for row in rows if row["status"] >= 500],
        "slowest": sorted(rows, key=lambda row: -row["seconds"])[:3],
        "largest": sorted(rows, key=lambda row: -row["mb"])[:3],
        "neighbours_changed": [row for row in rows if row["neighbours_same"] is not True],
    }


def _post(target: Target, *images: bytes) -> tuple[int, Any]:
    with contextlib.closing(http.client.HTTPConnection(target.host, target.port, timeout=60)) as connection:
        connection.request("POST", "/classify", multipart(images), {"Content-Type": MULTIPART})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def soak(minutes: float, bundle: Path, names: list[str], idle: int) -> dict[str, Any]:
    """Send good requests at half of the capacity, first alone and then beside all attacks in a loop.

    Every answer is held against the one that its picture got alone. The server is watched both times. `idle`:
    connections that are open all the time.
    """
    shots = tuple(Shot(make_jpeg(size), "image/jpeg") for size in (60_000, 110_000, 160_000))
    with attacked(bundle, ALL_FORMATS) as (target, seen), target.crowd(target.port, idle):
        plan = Plan(((target.host, target.port),), "/classify", shots, seconds=10, connections=8, answer=WHOLE_ANSWER)
        plan = learned(plan)
        capacity = summary(plan, run_plan(plan))["goodput"]
        plan = replace(plan, rate=capacity / 2, connections=512, seconds=60 * minutes)
        short = replace(plan, seconds=min(120.0, 60 * minutes))
        with Seen(target, seen.pid).watching(SOAK_MEMORY_SECONDS):
            alone = summary(short, run_plan(short))
        with seen.watching(SOAK_MEMORY_SECONDS), attacker(names, target, 60 * minutes) as process:
            beside = summary(plan, run_plan(plan))
            outcomes = json.loads(process.communicate()[0])
    third = max(1, len(seen.memory) // 3)
    first, last = max(seen.memory[:third]), max(seen.memory[-third:])
    return {
        "capacity": capacity,
        "alone": alone,
        "beside": beside,
        "idle_connections": idle,
        "rounds": outcomes["rounds"],
        "attack_outcomes": outcomes["outcomes"],
        "p99_ratio": round(beside["latency_ms"]["p99"] / alone["latency_ms"]["p99"], 2),
        "livez_seconds": round(seen.slowest_probe_seconds, 2),
        "probes": seen.probes,
        "rss_mb": {"first third": round(first / 1e6), "last third": round(last / 1e6)},
    }


def attack(names: list[str], target: Target, seconds: float) -> dict[str, Any]:
    """Run the attacks in turn, each at least once, until the seconds are over.

    Returns:
        The outcomes of each, the rounds, and the seconds, before which the bodies are made.
    """
    os.nice(19)
    bodies = {name: KNOWN[name].body() for name in names}
    began, rounds = time.monotonic(), 0
    outcomes: dict[str, Counter[str]] = {}
    while not rounds or time.monotonic() < began + seconds:
        for name in names:
            outcomes.setdefault(name, Counter()).update(KNOWN[name].run(target, bodies[name]))
        rounds += 1
    return {"seconds": time.monotonic() - began, "rounds": rounds, "outcomes": outcomes}


def main() -> None:
    """Run the command that the module describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="attacks, separated by commas; the figures of all are left as they are")
    parser.add_argument("--files", action="append", type=Path, help="a folder of images and what pretends to be one")
    parser.add_argument("--soak", type=float, help="minutes")
    parser.add_argument("--idle", type=int, default=0, help="idle connections that are kept beside the soak")
    parser.add_argument("--out", type=Path, help="bench/results/attacks.json, but with --only nothing")
    parser.add_argument("--against", help=argparse.SUPPRESS)
    parser.add_argument("--for-seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(ATTACKS)
    out = options.out or (None if options.only else RESULTS / "attacks.json")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection each
    if options.against:
        print(json.dumps(attack(names, Target(**json.loads(options.against)), options.for_seconds)))
        return
    document = json.loads(out.read_text()) if out is not None and out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        bundle = tiny_bundle(Path(folder) / "wide", CLASSES)
        if options.files:
            document["files"] = report = measure_files(options.files, bundle)
            print(json.dumps(report, indent=1))
        elif options.soak:
            document["soak"] = report = soak(options.soak, bundle, names, options.idle)
            print(json.dumps(report, indent=1))
        else:
            document["each"] = measure_each(names, bundle)
    if out is not None:
        out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
