"""Latency by percentile and against load, and overload over time, of one document: one picture."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...models.report.drawing import PICTURE, figure, save_picture
from ..labels import label_ends, plain_log

NINES = (0, 50, 90, 99, 99.9)
PALETTE = PICTURE.palette
BLUE, RED, GREEN, PINK, ORANGE, SKY = PALETTE.series
COLOURS = {"200": GREEN, "503": ORANGE, "429": SKY, "504": RED, "timeout": PINK}
LINES = {"p50": BLUE, "p99": RED}


def plot(document: Mapping[str, Any], out: Path) -> Path:
    """Write the picture; the format is the name's.

    Raises:
        ValueError: no row has latencies of an open loop or an overload, or the name is of no picture.
        ImportError: matplotlib is not installed.
    """
    return save_picture(lambda: draw(document), out)


def draw(document: Mapping[str, Any]) -> Any:
    """The figure: a panel for each thing that was measured; raises ValueError where that is none."""
    rows = document["rows"]
    curves = [row for row in rows if row["curve"] and row["section"] in ("load", "malformed")]
    loads = sorted((row for row in curves if row["section"] == "load" and row["rate"]), key=lambda row: row["rate"])
    overloads = [row for row in rows if row["section"] == "overload" and row["timeline"]]
    panels = [320 + 10 * len(curves)] * bool(curves) + [260] * bool(loads) + [220] * len(overloads)
    if not panels:
        raise ValueError("no row of an open loop was answered: there is nothing to draw")
    drawn = figure(PICTURE, sum(panels))
    axes = iter(drawn.subplots(len(panels), 1, height_ratios=panels, squeeze=False)[:, 0])
    if curves:
        _distribution(next(axes), curves)
    if loads:
        _against_load(next(axes), loads, document.get("capacity"))
    for row in overloads:
        _over_time(next(axes), row)
    return drawn


def _distribution(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """The share of requests that were answered within a time; the last percents are stretched: where it is felt."""
    for row, color in zip(rows, PALETTE.series * len(rows), strict=False):
        places = [(ms, _nines(q)) for q, ms in row["curve"] if q <= _resolved(row)]
        what = row["what"] if row["section"] == "load" else f"{row['section']}, {row['what']}"
        axis.plot(*zip(*places, strict=True), color=color, lw=1.8, label=f"{what}: {row['rate']:,.4g}/s")
    axis.set_xscale("log")
    plain_log(axis.xaxis)
    axis.set_yticks([_nines(q) for q in NINES], [f"{q:g} %" for q in NINES])
    axis.set_ylim(0, None)
    axis.set_xlabel("ms from the intended start")
    axis.set_title("Good requests answered within so long (open loop)")
    # Below: a curve may be anywhere inside.
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2, fontsize=11)


def _against_load(axis: Any, rows: Sequence[Mapping[str, Any]], capacity: float | None) -> None:
    """Latency against requests a second; the capacity, found in a closed loop, is where it ends."""
    rates = [row["rate"] for row in rows]
    for name, color in LINES.items():
        axis.plot(rates, [row["latency_ms"][name] for row in rows], "o-", color=color, lw=1.8, ms=5)
    if capacity:
        axis.axvline(capacity, color=PALETTE.ink, lw=1, ls=(0, (4, 3)))
    axis.set_xlim(0, 1.1 * max(*rates, capacity or 0.0))
    axis.set_yscale("log")
    plain_log(axis.yaxis)
    axis.margins(y=0.15)
    axis.set_xlabel("requests a second")
    axis.set_ylabel("ms")
    axis.set_title("Latency against load")
    label_ends(axis, [(rates[-1], rows[-1]["latency_ms"][name], name, color) for name, color in LINES.items()])
    if capacity:
        text = f"capacity {capacity:,.0f}/s "
        axis.annotate(text, (capacity, 0.04), xycoords=("data", "axes fraction"), ha="right")


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
        axis.bar(places, heights, width * 0.95, base, color=COLOURS.get(outcome, PALETTE.muted), label=outcome)
        base = [below + height for below, height in zip(base, heights, strict=True)]
    axis.set_ylim(0, 1.35 * max(base))
    axis.set_ylabel("requests a second")
    axis.set_xlabel("s")
    axis.set_title(f"Overload, {row['what']}: {row['goodput']:,.0f}/s good in time")
    axis.legend(loc="upper left", ncols=6, fontsize=10, handlelength=1)
    right = axis.twinx()
    right.grid(visible=False)
    accepted = [(found["at"] + width / 2, found["p99_ms"]) for found in bins if found["p99_ms"] is not None]
    if accepted:
        right.plot(*zip(*accepted, strict=True), color=PALETTE.ink, lw=1.4, marker=".", ms=4)
    right.set_ylim(0, max([row["timeout_ms"], *(ms for _, ms in accepted)]) * 1.35)
    right.set_ylabel("p99 of 200s, ms (line)")


def _nines(q: float) -> float:
    return -math.log10(max(1e-9, 1 - q / 100))


def _resolved(row: Mapping[str, Any]) -> float:
    """The largest percentile that ten or more requests lie beyond."""
    accepted = row["statuses"].get("200", 0)
    return 100 * (1 - 10 / accepted) if accepted > 10 else 0.0
