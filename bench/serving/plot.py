"""Latencies by percentile, and overload over time, of one document: one picture."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NINES = (0, 50, 90, 99, 99.9)
COLOURS = {"200": "#2a9d8f", "503": "#e9c46a", "429": "#f4a261", "504": "#e76f51", "timeout": "#9d2a3b"}
OTHER = "#8d99ae"


def plot(document: Mapping[str, Any], out: Path) -> Path:
    """Write the picture; the format is the name's.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("agg", force=False)
    from matplotlib.figure import Figure

    overloads = [row for row in document["rows"] if row["section"] == "overload"]
    figure = Figure(figsize=(10, 4.2 + 2.6 * len(overloads)), layout="constrained")
    axes = figure.subplots(1 + len(overloads), 1, height_ratios=[3, *[2] * len(overloads)], squeeze=False)[:, 0]
    _percentiles(axes[0], [row for row in document["rows"] if row["curve"] and row["section"] in ("load", "malformed")])
    for axis, row in zip(axes[1:], overloads, strict=True):
        _over_time(axis, row)
    out.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "milkweed"}):  # the same rows, the same bytes
        figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
    return out


def _percentiles(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Latency against percentile, the last percents stretched: where a service is felt to be slow."""
    for row in rows:
        points = [(_nines(q), ms) for q, ms in row["curve"] if q <= _resolved(row)]
        label = f"{row['section']}, {row['what']} ({row['rate']:g}/s)"
        axis.plot(*zip(*points, strict=True), marker=".", markersize=3, linewidth=1.4, label=label)
    axis.set_yscale("log")
    axis.set_xticks([_nines(q) for q in NINES], [f"{q:g} %" for q in NINES])
    axis.set_xlabel("percentile of good requests")
    axis.set_ylabel("ms from the intended start")
    axis.grid(alpha=0.3, which="both", linewidth=0.5)
    axis.set_title("Latency, open loop", loc="left", fontsize=10)
    if rows:
        axis.legend(fontsize=8, frameon=False)


def _over_time(axis: Any, row: Mapping[str, Any]) -> None:
    """What became of the requests of each half second, stacked; the line is the p99 of those accepted."""
    bins = row["timeline"]
    width = bins[1]["at"] - bins[0]["at"] if len(bins) > 1 else 1.0
    base = [0.0] * len(bins)
    for outcome in sorted(
        {name for found in bins for name in found["statuses"]}, key=lambda name: (name != "200", name)
    ):
        heights = [found["statuses"].get(outcome, 0) / width for found in bins]
        places = [found["at"] + width / 2 for found in bins]
        axis.bar(places, heights, width * 0.95, base, color=COLOURS.get(outcome, OTHER), label=outcome)
        base = [below + height for below, height in zip(base, heights, strict=True)]
    axis.set_ylabel("requests/s")
    axis.set_xlabel("s")
    axis.set_title(f"Overload, {row['what']}: good {row['goodput']:g}/s in time", loc="left", fontsize=10)
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.09, 1))
    right = axis.twinx()
    accepted = [(found["at"] + width / 2, found["p99_ms"]) for found in bins if found["p99_ms"] is not None]
    if accepted:
        right.plot(*zip(*accepted, strict=True), color="black", linewidth=1, marker=".", markersize=3)
    right.set_ylim(0, max([row["timeout_ms"], *(ms for _, ms in accepted)]) * 1.1)
    right.set_ylabel("p99 of 200s, ms")


def _nines(q: float) -> float:
    return -math.log10(max(1e-9, 1 - q / 100))


def _resolved(row: Mapping[str, Any]) -> float:
    """The largest percentile that ten or more requests lie beyond."""
    accepted = row["statuses"].get("200", 0)
    return 100 * (1 - 10 / accepted) if accepted > 10 else 0.0
