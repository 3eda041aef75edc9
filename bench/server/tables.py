"""Rows of `milkweed bench server` for a person: narrow enough for a terminal of 100 columns."""

from collections.abc import Mapping
from typing import Any

from ...cli.output import print_table

COLUMNS = ("section", "what", " rate", " good/s", " p50", " p99", " CPU ms", " RSS MB", " late", "other than 200")


def print_rows(document: Mapping[str, Any]) -> None:
    """Print a line for each row.

    Columns: rate asked of the open loop, requests a second; good answers in time a second; latency of those, ms;
    CPU of the server for each answer; its memory after the row; p99 of the client's own lateness, ms; all that
    was not 200.
    """
    print_table(COLUMNS, map(_cells, document["rows"]))


def line(row: Mapping[str, Any]) -> str:
    """A row on one line, while others are still to come."""
    latency = row["latency_ms"] or {"p50": "-", "p99": "-"}
    figures = f"{row['section']}, {row['what']}: {row['goodput']:g}/s, p50 {latency['p50']}, p99 {latency['p99']} ms"
    return ", ".join(filter(None, (figures, others(row))))


def others(row: Mapping[str, Any]) -> str:
    """What else became of good requests, and of the server."""
    remarks = [f"{count} x {outcome}" for outcome, count in row["statuses"].items() if outcome != "200"]
    remarks += [f"malformed {count} x {outcome}" for outcome, count in row["malformed_statuses"].items()]
    words = {
        "wrong_answers": "{} wrong answers",
        "refusals_without_retry_after": "{} without Retry-After",
        "moved": "{} moved",
        "recovery_seconds": "itself again after {} s",
        "growth_mb_per_10000_requests": "{:+.3f} MB in 10,000 requests",
        "rss_idle_mb": "{:,.0f} MB a minute later",
        "rss_growth": "memory {:+.1%}",
    }
    counts = ("wrong_answers", "refusals_without_retry_after", "moved")
    for name, said in words.items():
        value = row.get(name)
        if value is not None and (value or name not in counts):
            remarks.append(said.format(value))
    if row.get("recovery_seconds", 0) is None:
        remarks.append("did not recover")
    return ", ".join(remarks)


def _cells(row: Mapping[str, Any]) -> list[str]:
    latency, lateness = row["latency_ms"] or {}, row["lateness_ms"] or {}
    return [
        row["section"],
        row["what"],
        _number(row["rate"], 0),
        _number(row["goodput"], 0),
        _number(latency.get("p50"), 1),
        _number(latency.get("p99"), 1),
        _number(row["cpu_ms_per_request"], 2),
        _number(row["rss_mb"][1] if row["rss_mb"] else None, 0),
        _number(lateness.get("p99"), 1) + ("!" if row["client_late"] else ""),
        others(row),
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
