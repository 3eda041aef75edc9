"""The comparison as one table."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

COLUMNS = (
    "server",
    "body",
    "CPU ms/req",
    "req/s",
    "p50 ms",
    "p99 ms",
    "open p50",
    "open p99",
    "neighbours",
    "goodput at 2x",
    "PSS MB",
)
_LEFT = ("server", "body")


def table(document: Mapping[str, Any]) -> Table:
    """One line a server.

    Columns: CPU a request, rate and latencies in the closed loop; latencies of the open loop that all get alike; good
    requests failed beside malformed ones; answers in time at twice the capacity of the slow device, as a share of it.
    """
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in COLUMNS:
        found.add_column(column, justify="left" if column in _LEFT else "right", overflow="fold")
    for server in document["servers"]:
        if server["rows"]:
            found.add_row(*_cells(server))
    return found


def skipped(document: Mapping[str, Any]) -> list[str]:
    """A line for each peer that was not measured, or not to the end."""
    return [f"{server['name']}: skipped: {server['skipped']}" for server in document["servers"] if server["skipped"]]


def _cells(server: Mapping[str, Any]) -> list[str]:
    rows = server["rows"]
    capacities = [row for row in rows if row["section"] == "capacity"]
    whole = [row for row in capacities if not row["good_failed"]] or capacities
    capacity = max(whole, key=lambda row: float(row["goodput"]))
    cells = [server["name"], server["body"], f"{capacity['cpu_ms_per_request']:.2f}", f"{capacity['goodput']:.0f}"]
    cells += _latencies(capacity)
    found = {row["section"]: row for row in rows}  # of several rows of a section, the last
    cells += _latencies(found["load"]) if "load" in found else ["-", "-"]
    mixed = found.get("malformed")
    cells.append(f"{mixed['good_failed'] / max(1, mixed['good_sent']):.1%}" if mixed else "-")
    most = max((float(row["goodput"]) for row in rows if row["section"] == "slow"), default=0.0)
    shares = [f"{100 * row['goodput'] / most:.0f}" for row in rows if row["section"] == "overload" and most]
    shares = [f"{'/'.join(shares)}% of {most:.0f}"] if shares else []
    return [*cells, *(shares or ["-"]), f"{capacity['pss_mb']:.0f}"]


def _latencies(row: Mapping[str, Any]) -> list[str]:
    latency = row["latency_ms"]
    return [f"{latency[name]:.1f}" for name in ("p50", "p99")] if latency else ["-", "-"]
