"""Hot reloads under load: a model is replaced again and again while it answers; nothing may be lost."""

import json
import shutil
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..http_overhead import running_server
from ..load.endpoints import target_of
from ..load.plan import Plan
from ..load.processes import Clients
from .ports import free_port
from .subject import Subject

FOREVER_SECONDS = 24 * 3600.0

SETTLE_SECONDS = 1.0
"""Of load before the first reload, between two, and after the last."""

NAME = "bench"


def reloading(
    subject: Subject, bundle: Path, folder: Path, settings: Mapping[str, Any], *, reloads: int, rate: float
) -> None:
    """Book one row: requests lost over so many reloads, and the memory before and after each.

    Args:
        folder: an empty one, for a repository of two versions of the bundle, which take turns.
    """
    for number in ("1", "2"):
        shutil.copytree(bundle, folder / NAME / number)
    port = free_port()
    given = {**settings, "repository": str(folder), "admin_port": port}
    with running_server(None, given) as (process, url):
        plan = replace(subject.plan, targets=(target_of(url),), seconds=FOREVER_SECONDS, rate=rate, connections=2000)
        _book(subject, plan, process.pid, port, reloads)


def _book(subject: Subject, plan: Plan, pid: int, port: int, reloads: int) -> None:
    seconds: list[float] = []

    def reload_all(_: Clients) -> None:
        time.sleep(SETTLE_SECONDS)
        for turn in range(reloads):
            began = time.perf_counter()
            load(port, str(1 + turn % 2))
            seconds.append(time.perf_counter() - began)
            time.sleep(SETTLE_SECONDS)

    row = replace(subject, pids=(pid,), stages=dict, rows=subject.rows).row(
        "reload", f"{reloads} reloads", plan, during=reload_all
    )
    row["reloads"] = reloads
    row["reload_seconds"] = round(sorted(seconds)[len(seconds) // 2], 3)
    row["rss_growth"] = growth_share(row["memory"])


def load(port: int, number: str) -> None:
    """Have a version served in place of the one before; returns once it serves."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/models/{NAME}/load?number={number}", method="POST", data=b""
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        served = json.loads(answer.read())["number"]
    if served != number:
        raise RuntimeError(f"version {number} was asked for and {served} serves")


def growth_share(memory: list[tuple[float, float]]) -> float | None:
    """Of resident memory: the last tenth's median over that of the second tenth, less one.

    Args:
        memory: seconds, MB. The first tenth is left out: the allocator's pools are still growing.
    """
    tenth = len(memory) // 10
    if tenth < 2:
        return None

    def median(part: list[tuple[float, float]]) -> float:
        return sorted(mb for _, mb in part)[len(part) // 2]

    return round(median(memory[-tenth:]) / median(memory[tenth : 2 * tenth]) - 1, 4)
