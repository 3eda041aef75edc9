"""The sections on one running server: capacity, load, overload, malformed neighbours, soak."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..load.plan import Plan
from .subject import Subject

MOST_CONNECTIONS = 256
ENOUGH_GAIN = 1.05
"""Twice the connections must bring this much more, or capacity is found."""

OPEN_CONNECTIONS = 2000
"""At most, in an open loop: as many as a client process has descriptors for."""

DEADLINE = "X-Request-Timeout-Ms"


@dataclass(frozen=True)
class Options:
    """Of the sections.

    Args:
        loads: of the open-loop rows, as shares of the capacity.
        rates: of the load section and, the first, of the soak, requests a second; instead of their loads.
        overload: as a multiple of the capacity.
        overload_timeout_seconds: after which the client of an overloaded server gives up.
        malformed_share: of the requests beside which the good ones must not fail.
        soak_minutes, soak_load: how long, at which share of the capacity.
        idle_seconds: after the soak, before memory is looked at once more.
    """

    arrivals: str = "poisson"
    loads: Sequence[float] = (0.3, 0.5, 0.8)
    rates: Sequence[float] = ()
    overload: float = 2.0
    overload_timeout_seconds: float = 0.5
    malformed_share: float = 0.09
    malformed_load: float = 0.5
    soak_minutes: float = 10.0
    soak_load: float = 0.7
    idle_seconds: float = 60.0


def capacity(subject: Subject, what: str = "", section: str = "capacity") -> float:
    """Answers with 200 a second in a closed loop: connections doubled until that brings little more."""
    best, connections = 0.0, subject.plan.connections
    while True:
        plan = replace(subject.plan, seconds=subject.seconds, rate=0.0, connections=connections)
        row = subject.row(section, f"{what} {connections} connections".strip(), plan)
        found = float(row["goodput"])
        if best and row["good_failed"]:
            return best  # it refuses so many at once: what refusals cost is no part of its capacity
        enough = found < best * ENOUGH_GAIN
        best = max(best, found)
        if enough or 2 * connections > MOST_CONNECTIONS:
            return best
        connections *= 2


def load(subject: Subject, most: float, options: Options) -> None:
    """Latencies below capacity, requests arriving as they like."""
    rates = options.rates or [share * most for share in options.loads]
    for rate in rates:
        subject.row("load", _share(rate, most), _open(subject, rate, options))


def overload(subject: Subject, most: float, options: Options, *, tells: bool = True) -> None:
    """More than the server can do, clients that give up: what still gets an answer in time.

    Args:
        tells: also with requests that say how long they wait.
    """
    plan = replace(
        _open(subject, options.overload * most, options),
        timeout_seconds=options.overload_timeout_seconds,
    )
    subject.recover(subject.row("overload", f"{options.overload:g} x capacity", plan))
    if tells:
        deadline = (DEADLINE, f"{options.overload_timeout_seconds * 1e3:.0f}")
        told = replace(plan, headers=(*plan.headers, deadline))
        subject.recover(subject.row("overload", f"{options.overload:g} x capacity, deadline told", told))


def malformed(subject: Subject, most: float, options: Options) -> None:
    """Good requests alone, then the same with malformed ones among them."""
    plan = _open(subject, options.malformed_load * most, options)
    subject.row("malformed", "none malformed", plan)
    mixed = replace(plan, malformed_share=options.malformed_share)
    subject.row("malformed", f"{options.malformed_share:.0%} malformed", mixed)


def soak(subject: Subject, most: float, options: Options) -> None:
    """Long, below capacity, a few malformed requests among the good ones: errors, and memory that grows."""
    rate = options.rates[0] if options.rates else options.soak_load * most
    plan = replace(
        _open(subject, rate, options),
        seconds=options.soak_minutes * 60,
        malformed_share=options.malformed_share / 10,
    )
    row = subject.row("soak", f"{options.soak_minutes:g} min at {_share(rate, most)}", plan)
    row["growth_mb_per_10000_requests"] = growth(row["memory"], row["sent"] / row["seconds"])
    if subject.pids:
        time.sleep(options.idle_seconds)
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
    mean_at = sum(at for at, _ in settled) / len(settled)
    mean_mb = sum(mb for _, mb in settled) / len(settled)
    along = sum((at - mean_at) * (mb - mean_mb) for at, mb in settled)
    return round(along / sum((at - mean_at) ** 2 for at, _ in settled) / rate * 10_000, 3)


def _share(rate: float, most: float) -> str:
    return f"{rate / most:.0%} of capacity" if most else f"{rate:g}/s"


def _open(subject: Subject, rate: float, options: Options) -> Plan:
    return replace(
        subject.plan,
        seconds=subject.seconds,
        rate=rate,
        arrivals=options.arrivals,
        connections=OPEN_CONNECTIONS,
    )


def no_row_failed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What a server of ours must never do, in words; empty where it did not."""
    found = []
    for row in rows:
        where = f"{row['section']} ({row['what']})"
        if row["lost"]:
            found.append(f"{where}: {row['lost']} requests lost")
        if row["wrong_answers"]:
            found.append(f"{where}: {row['wrong_answers']} wrong answers")
        if row["refusals_without_retry_after"]:
            found.append(f"{where}: {row['refusals_without_retry_after']} refusals without Retry-After")
        if row["section"] not in ("overload",) and row["good_failed"]:
            found.append(f"{where}: {row['good_failed']} of {row['good_sent']} good requests failed")
        if row["client_late"]:
            found.append(
                f"{where}: the client was late (p99 {row['lateness_ms']['p99']} ms): its latencies are its own"
            )
    return found
