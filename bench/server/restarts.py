"""Rolling restarts and hot reloads under load: nothing may be lost."""

import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from ..load.plan import Plan, Target, target_of
from ..process import free_port, running_server
from .sections import OPEN_CONNECTIONS
from .subject import Subject

SETTLE_SECONDS = 1.0  # of load before the first restart or reload, between two, and after the last
FOREVER_SECONDS = 24 * 3600.0

NAME = "bench"


def rolling(subject: Subject, bundle: Path, rate: float) -> None:
    """Book one row: requests lost over restarts of two servers, which take turns.

    The client is a load balancer that hears of a server's readiness late: it sends to all servers in turn whose
    absence has become known, over kept connections; it never sends again what a connection lost; a 503 goes to the
    other server. As in Kubernetes, where a pod is told to end at the moment its endpoint begins to be removed.
    """
    request, watch, exit_codes = subject.request, subject.request.watch, set[int]()

    @contextmanager
    def serving(port: int) -> Iterator[Target]:
        """A server on this port, warm, that gets SIGTERM and is waited for."""
        with running_server(bundle, {**request.settings, "port": port}) as (process, url):
            yield target_of(url)
        exit_codes.add(process.returncode)

    with ExitStack() as first, ExitStack() as second:
        servers = list(zip((first, second), (free_port(), free_port()), strict=True))
        targets = tuple(stack.enter_context(serving(port)) for stack, port in servers)

        def restart_all() -> None:
            time.sleep(SETTLE_SECONDS)
            for number in range(request.restarts):
                stack, port = servers[number % len(servers)]
                stack.close()
                stack.enter_context(serving(port))
                # It gets requests again before the next one is told to end.
                time.sleep(watch.every_seconds + watch.delay_seconds + SETTLE_SECONDS)

        plan = replace(_forever(subject, rate), targets=targets, watch=watch)
        what = f"{request.restarts} restarts of 2 servers"
        row = replace(subject, pid=None, stages=dict).row("rolling", what, plan, during=restart_all)
    row |= {"restarts": request.restarts, "watch": vars(watch), "exit_codes": sorted(exit_codes)}


def reloading(subject: Subject, bundle: Path, folder: Path, rate: float) -> None:
    """Book one row: requests lost over so many reloads, and the memory before and after each.

    Args:
        folder: an empty one, for a repository of two versions of the bundle, which take turns.
    """
    for number in ("1", "2"):
        shutil.copytree(bundle, folder / NAME / number)
    port, reloads, seconds = free_port(), subject.request.reloads, []

    def reload_all() -> None:
        time.sleep(SETTLE_SECONDS)
        for turn in range(reloads):
            began = time.perf_counter()
            load(port, str(1 + turn % 2))
            seconds.append(time.perf_counter() - began)
            time.sleep(SETTLE_SECONDS)

    given = {**subject.request.settings, "repository": str(folder), "admin_port": port}
    with running_server(None, given) as (process, url):
        plan = replace(_forever(subject, rate), targets=(target_of(url),))
        own = replace(subject, pid=process.pid, stages=dict)
        row = own.row("reload", f"{reloads} reloads", plan, during=reload_all)
    growth = growth_share(row["memory"])
    row |= {"reloads": reloads, "reload_seconds": round(median(seconds), 3), "rss_growth": growth}


def _forever(subject: Subject, rate: float) -> Plan:
    return replace(subject.plan, seconds=FOREVER_SECONDS, rate=rate, connections=OPEN_CONNECTIONS)


def load(port: int, number: str) -> None:
    """Have a version served in place of the one before; returns once it serves."""
    url = f"http://127.0.0.1:{port}/v1/models/{NAME}/load?number={number}"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST", data=b""), timeout=120) as answer:
        served = json.loads(answer.read())["number"]
    if served != number:
        raise RuntimeError(f"version {number} was asked for and {served} serves")


def growth_share(memory: list[tuple[float, float]]) -> float | None:
    """Growth of resident memory: the last tenth's median over that of the second tenth, less one.

    Args:
        memory: seconds, MB. The first tenth is left out: the allocator's pools are still growing.
    """
    tenth, mb = len(memory) // 10, [mb for _, mb in memory]
    return round(median(mb[-tenth:]) / median(mb[tenth : 2 * tenth]) - 1, 4) if tenth >= 2 else None
