"""The sections: capacity, load, overload, malformed neighbours, soak on one running server; restarts and reloads."""

import json
import shutil
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

from ..load.plan import Plan, Target, target_of
from ..ports import free_port
from ..process import running_server
from .benched_server import BenchedServer, Memory

MOST_CONNECTIONS = 256
ENOUGH_GAIN = 1.05  # twice the connections must bring this much more, or capacity is found
OPEN_CONNECTIONS = 2000  # at most, in an open loop: as many as a client process has descriptors for
MALFORMED_LOAD, SOAK_LOAD = 0.5, 0.7  # rates of these sections, as shares of the capacity
IDLE_SECONDS = 60.0  # after the soak, before memory is looked at once more
SETTLE_SECONDS = 1.0  # of load before the first restart or reload, between two, and after the last
FOREVER_SECONDS = 24 * 3600.0
NAME = "bench"
DEADLINE = "X-Request-Timeout-Ms"


def capacity(server: BenchedServer, what: str = "", section: str = "capacity") -> float:
    """Answers with 200 a second in a closed loop: connections doubled until that brings little more."""
    best, connections = 0.0, server.plan.connections
    while True:
        plan = replace(server.plan, connections=connections)
        row = server.row(section, f"{what} {connections} connections".strip(), plan)
        if best and row["good_failed"]:
            return best  # it refuses so many at once: what refusals cost is no part of its capacity
        enough = row["goodput"] < best * ENOUGH_GAIN
        best = max(best, float(row["goodput"]))
        connections *= 2
        if enough or connections > MOST_CONNECTIONS:
            return best


def load(server: BenchedServer, most: float) -> None:
    """Latencies below capacity, requests arriving as they like."""
    for rate in server.request.rates or [share * most for share in server.request.loads]:
        server.row("load", _share(rate, most), _open(server, rate))


def overload(server: BenchedServer, most: float, *, tells: bool = True) -> None:
    """More than the server can do, clients that give up: what still gets an answer in time.

    Args:
        tells: also with requests that say how long they wait.
    """
    request = server.request
    what, timeout_ms = f"{request.overload:g} x capacity", request.overload_timeout_ms
    plan = _open(server, request.overload * most, timeout_seconds=timeout_ms / 1e3)
    server.recover(server.row("overload", what, plan))
    if tells:
        told = replace(plan, headers=(*plan.headers, (DEADLINE, f"{timeout_ms}")))
        server.recover(server.row("overload", f"{what}, deadline told", told))


def malformed(server: BenchedServer, most: float) -> None:
    """Good requests alone, then the same with malformed ones among them."""
    plan, share = _open(server, MALFORMED_LOAD * most), server.request.malformed
    server.row("malformed", "none malformed", plan)
    server.row("malformed", f"{share:.0%} malformed", replace(plan, malformed_share=share))


def soak(server: BenchedServer, most: float) -> None:
    """Long, below capacity, a few malformed requests among the good ones: errors, and memory that grows."""
    request = server.request
    rate = request.rates[0] if request.rates else SOAK_LOAD * most
    plan = _open(server, rate, seconds=request.minutes * 60, malformed_share=request.malformed / 10)
    with server.watched() as memory:
        row = server.row("soak", f"{request.minutes:g} min at {_share(rate, most)}", plan)
    row["growth_mb_per_10000_requests"] = growth(memory, row["sent"] / row["seconds"])
    if server.pid is not None:
        time.sleep(IDLE_SECONDS)
        row["rss_idle_mb"] = server.rss_mb()


def growth(memory: Memory, rate: float) -> float | None:
    """Slope of resident memory by least squares, MB in 10,000 requests; without the first fifth of the time.

    Args:
        rate: requests a second.
    """
    settled = [point for point in memory if point[0] > 0.2 * memory[-1][0]]
    if len(settled) < 3:
        return None
    mb_a_second = linear_regression(*zip(*settled, strict=True)).slope
    return round(mb_a_second / rate * 10_000, 3)


def _share(rate: float, most: float) -> str:
    return f"{rate / most:.0%} of capacity" if most else f"{rate:g}/s"


def _open(server: BenchedServer, rate: float, **changes: Any) -> Plan:
    return replace(server.plan, rate=rate, connections=OPEN_CONNECTIONS, **changes)


def rolling(server: BenchedServer, bundle: Path, rate: float) -> None:
    """Book one row: requests lost over restarts of two servers, which take turns.

    The client is a load balancer that hears of a server's readiness late: it sends to all servers in turn whose
    absence has become known, over kept connections; it never sends again what a connection lost; a 503 goes to the
    other server. As in Kubernetes, where a pod is told to end at the moment its endpoint begins to be removed.
    """
    request, watch, exit_codes = server.request, server.request.watch, set[int]()

    @contextmanager
    def serving(port: int) -> Iterator[Target]:
        """A server on this port, warm, that gets SIGTERM and is waited for."""
        with running_server(bundle, {**request.server_settings, "port": port}) as (process, url):
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

        plan = _open(server, rate, seconds=FOREVER_SECONDS, targets=targets, watch=watch)
        what = f"{request.restarts} restarts of 2 servers"
        row = replace(server, pid=None, stages=dict).row("rolling", what, plan, during=restart_all)
    row |= {"restarts": request.restarts, "watch": vars(watch), "exit_codes": sorted(exit_codes)}


def reloading(server: BenchedServer, bundle: Path, folder: Path, rate: float) -> None:
    """Book one row: requests lost over so many reloads, and the memory before and after each.

    Args:
        folder: an empty one, for a repository of two versions of the bundle, which take turns.
    """
    for number in ("1", "2"):
        shutil.copytree(bundle, folder / NAME / number)
    port, reloads, seconds = free_port(), server.request.reloads, []

    def reload_all() -> None:
        time.sleep(SETTLE_SECONDS)
        for turn in range(reloads):
            began = time.perf_counter()
            load_version(port, str(1 + turn % 2))
            seconds.append(time.perf_counter() - began)
            time.sleep(SETTLE_SECONDS)

    settings = {**server.request.server_settings, "repository": str(folder), "admin_port": port}
    with running_server(None, settings) as (process, url):
        plan = _open(server, rate, seconds=FOREVER_SECONDS, targets=(target_of(url),))
        reloaded = replace(server, pid=process.pid, stages=dict)
        with reloaded.watched() as memory:
            row = reloaded.row("reload", f"{reloads} reloads", plan, during=reload_all)
    row |= {"reloads": reloads, "reload_seconds": round(median(seconds), 3), "rss_growth": growth_share(memory)}


def load_version(port: int, number: str) -> None:
    """Have a version served in place of the one before; returns once it serves."""
    url = f"http://127.0.0.1:{port}/v1/models/{NAME}/load?number={number}"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST", data=b""), timeout=120) as answer:
        served = json.loads(answer.read())["number"]
    if served != number:
        raise RuntimeError(f"version {number} was asked for and {served} serves")


def growth_share(memory: Memory) -> float | None:
    """Growth of resident memory: the last tenth's median over that of the second tenth, less one.

    The first tenth is left out: the allocator's pools are still growing.
    """
    tenth, mb = len(memory) // 10, [mb for _, mb in memory]
    return round(median(mb[-tenth:]) / median(mb[tenth : 2 * tenth]) - 1, 4) if tenth >= 2 else None


def no_row_failed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """OnRow in words what a server of ours did that it must never do."""
    complaints = []
    for row in rows:
        where = f"{row['section']} ({row['what']}): "
        failed = row["good_failed"] if row["section"] != "overload" else 0
        bare = row["refusals_without_retry_after"]
        complaints += [f"{where}{row['lost']} requests lost"] * bool(row["lost"])
        complaints += [f"{where}{row['wrong_answers']} wrong answers"] * bool(row["wrong_answers"])
        complaints += [f"{where}{bare} refusals without Retry-After"] * bool(bare)
        complaints += [f"{where}{failed} of {row['good_sent']} good requests failed"] * bool(failed)
        if row["client_late"]:
            late = row["lateness_ms"]["p99"]
            complaints.append(f"{where}the client was late (p99 {late} ms): its latencies are its own")
    return complaints
