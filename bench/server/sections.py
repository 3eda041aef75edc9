"""The sections on one running server: capacity, load, overload, malformed neighbours, soak."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..load.plan import Plan
from .subject import Subject

MOST_CONNECTIONS = 256
ENOUGH_GAIN = 1.05  # twice the connections must bring this much more, or capacity is found
OPEN_CONNECTIONS = 2000  # at most, in an open loop: as many as a client process has descriptors for
MALFORMED_LOAD, SOAK_LOAD = 0.5, 0.7  # rates of these sections, as shares of the capacity
IDLE_SECONDS = 60.0  # after the soak, before memory is looked at once more
DEADLINE = "X-Request-Timeout-Ms"


def capacity(subject: Subject, what: str = "", section: str = "capacity") -> float:
    """Answers with 200 a second in a closed loop: connections doubled until that brings little more."""
    best, connections = 0.0, subject.plan.connections
    while True:
        row = subject.row(
            section, f"{what} {connections} connections".strip(), replace(subject.plan, connections=connections)
        )
        if best and row["good_failed"]:
            return best  # it refuses so many at once: what refusals cost is no part of its capacity
        enough = row["goodput"] < best * ENOUGH_GAIN
        best = max(best, float(row["goodput"]))
        connections *= 2
        if enough or connections > MOST_CONNECTIONS:
            return best


def load(subject: Subject, most: float) -> None:
    """Latencies below capacity, requests arriving as they like."""
    for rate in subject.request.rates or [share * most for share in subject.request.loads]:
        subject.row("load", _share(rate, most), _open(subject, rate))


def overload(subject: Subject, most: float, *, tells: bool = True) -> None:
    """More than the server can do, clients that give up: what still gets an answer in time.

    Args:
        tells: also with requests that say how long they wait.
    """
    request = subject.request
    what, timeout_seconds = f"{request.overload:g} x capacity", request.overload_timeout_seconds
    plan = replace(_open(subject, request.overload * most), timeout_seconds=timeout_seconds)
    subject.recover(subject.row("overload", what, plan))
    if tells:
        deadline = (DEADLINE, f"{timeout_seconds * 1e3:.0f}")
        told = replace(plan, headers=(*plan.headers, deadline))
        subject.recover(subject.row("overload", f"{what}, deadline told", told))


def malformed(subject: Subject, most: float) -> None:
    """Good requests alone, then the same with malformed ones among them."""
    plan, share = _open(subject, MALFORMED_LOAD * most), subject.request.malformed_share
    subject.row("malformed", "none malformed", plan)
    subject.row("malformed", f"{share:.0%} malformed", replace(plan, malformed_share=share))


def soak(subject: Subject, most: float) -> None:
    """Long, below capacity, a few malformed requests among the good ones: errors, and memory that grows."""
    request = subject.request
    rate = request.rates[0] if request.rates else SOAK_LOAD * most
    plan = replace(
        _open(subject, rate), seconds=request.soak_minutes * 60, malformed_share=request.malformed_share / 10
    )
    row = subject.row("soak", f"{request.soak_minutes:g} min at {_share(rate, most)}", plan)
    row["growth_mb_per_10000_requests"] = growth(row["memory"], row["sent"] / row["seconds"])
    if subject.pid is not None:
        time.sleep(IDLE_SECONDS)
        row["rss_idle_mb"] = subject.rss_mb()


def growth(memory: Sequence[tuple[float, float]], rate: float) -> float | None:
    """Slope of resident memory by least squares, MB in 10,000 requests; without the first fifth of the time.

    Args:
        memory: seconds, MB.
        rate: requests a second.
    """
    settled = [point for point in memory if point[0] > 0.2 * memory[-1][0]]
    if len(settled) < 3:
        return None
    mb_a_second = statistics.linear_regression(*zip(*settled, strict=True)).slope
    return round(mb_a_second / rate * 10_000, 3)


def _share(rate: float, most: float) -> str:
    return f"{rate / most:.0%} of capacity" if most else f"{rate:g}/s"


def _open(subject: Subject, rate: float) -> Plan:
    return replace(subject.plan, rate=rate, connections=OPEN_CONNECTIONS)


def no_row_failed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Say in words what a server of ours did that it must never do."""
    found = []
    for row in rows:
        where = f"{row['section']} ({row['what']}): "
        failed = row["good_failed"] if row["section"] != "overload" else 0
        bare = row["refusals_without_retry_after"]
        found += [f"{where}{row['lost']} requests lost"] * bool(row["lost"])
        found += [f"{where}{row['wrong_answers']} wrong answers"] * bool(row["wrong_answers"])
        found += [f"{where}{bare} refusals without Retry-After"] * bool(bare)
        found += [f"{where}{failed} of {row['good_sent']} good requests failed"] * bool(failed)
        if row["client_late"]:
            late = row["lateness_ms"]["p99"]
            found.append(f"{where}the client was late (p99 {late} ms): its latencies are its own")
    return found
