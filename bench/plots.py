"""The pictures of the benchmarks' JSON documents, in the style of the reports' drawings.

Each drawing takes a document and gives a figure, or raises ValueError where nothing was measured that it could show.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..models.report.drawing import INK, MUTED, PICTURE, SERIES, figure
from ..models.report.terms import counted
from .labels import label_ends, plain_log

BLUE, RED, GREEN, PINK, ORANGE, SKY = SERIES
DASHED = (0, (4, 3))

Document = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


class Line(NamedTuple):
    """A line of images a second against the images of a batch."""

    name: str
    colour: str
    style: str
    points: list[tuple[int, float]]


def _throughput(axis: Any, title: str, lines: Sequence[Line]) -> None:
    for line in lines:
        axis.plot(*zip(*line.points, strict=True), line.style, marker="o", ms=5, lw=1.8, color=line.colour)
    sizes = sorted({size for line in lines for size, _ in line.points})
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [f"{size}" for size in sizes])
    axis.minorticks_off()
    axis.set_xlim(sizes[0] / 1.2, sizes[-1] * 1.2)
    axis.set_ylim(0, 1.1 * max(rate for line in lines for _, rate in line.points))
    axis.set_xlabel("images of a batch")
    axis.set_ylabel("images a second")
    axis.set_title(title)


def _name_ends(axis: Any, lines: Sequence[Line]) -> None:
    label_ends(axis, [(*line.points[-1], line.name, line.colour) for line in lines])


def model(document: Document) -> Any:
    """`bench model`: a panel for each model, dense and structured, from the medians of wall time."""
    panels: dict[str, dict[tuple[str, str], list[tuple[int, float]]]] = {}
    for row in sorted((row for row in document["rows"] if row["what"] == "forward"), key=lambda row: row["images"]):
        for side in ("dense", "monarch"):
            points = panels.setdefault(row["name"], {}).setdefault((side, row["dtype"]), [])
            points.append((row["images"], 1e3 * row["images"] / row[side]["wall_ms"]))
    if not panels:
        raise ValueError("no forward was measured: there is nothing to draw")
    drawn = figure(PICTURE, 60 + 280 * len(panels))
    threads = counted(document["settings"]["threads"], "thread")
    drawn.suptitle(f"{document['machine']['processor']}, {threads}", x=0.02, ha="left", fontsize=13)
    axes = drawn.subplots(len(panels), 1, squeeze=False)[:, 0]
    lines = [[_side(*key, points) for key, points in panel.items()] for panel in panels.values()]
    for axis, name, of_panel in zip(axes, panels, lines, strict=True):
        _throughput(axis, name, of_panel)
    for axis, of_panel in zip(axes, lines, strict=True):  # once all panels have their final places
        _name_ends(axis, of_panel)
    return drawn


def _side(side: str, dtype: str, points: list[tuple[int, float]]) -> Line:
    name, colour = ("dense", BLUE) if side == "dense" else ("Monarch", RED)
    short = {"float32": "fp32", "bfloat16": "bf16"}.get(dtype, dtype)
    return Line(f"{name} {short}", colour, "-" if dtype == "float32" else "--", points)


def decode(document: Document) -> Any:
    """`bench decode`: a bar for each way, and our loaders by batch."""
    rows, batches = document.get("rows") or [], document.get("batches") or []
    heights = [70 + 30 * len(rows)] * bool(rows) + [280] * bool(batches)
    if not heights:
        raise ValueError("only the sections one and batches are drawn, and neither was measured")
    drawn = figure(PICTURE, sum(heights))
    # Subfigures are laid out apart, so that long names in one do not narrow the other.
    parts = iter(drawn.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    if rows:
        _decode_bars(next(parts).subplots(), sorted(rows, key=lambda row: float(row["images_per_second"])))
    if batches:
        axis, lines = next(parts).subplots(), list(_loader_lines(batches))
        _throughput(axis, "Our loaders on batches", lines)
        _name_ends(axis, lines)
    return drawn


def _decode_bars(axis: Any, rows: Rows) -> None:
    rates = [row["images_per_second"] for row in rows]
    colours = [BLUE if "(ours)" in row["method"] else MUTED for row in rows]
    axis.bar_label(axis.barh(range(len(rows)), rates, color=colours), fmt="{:,.0f}", padding=4, fontsize=11)
    axis.set_yticks(range(len(rows)), [row["method"] for row in rows])
    axis.grid(axis="y", visible=False)
    axis.margins(x=0.12)
    axis.set_xlabel("images a second")
    axis.set_title("JPEG to model input, one image after the other, 1 thread")


def _loader_lines(rows: Rows) -> Iterator[Line]:
    colours = dict(zip(dict.fromkeys(row["loader"] for row in rows), SERIES, strict=False))
    for loader, threads in dict.fromkeys((row["loader"], row["threads"]) for row in rows):
        mine = [row for row in rows if (row["loader"], row["threads"]) == (loader, threads)]
        points = [(row["batch"], row["images_per_second"]) for row in mine]
        yield Line(f"{loader}, {counted(threads, 'thread')}", colours[loader], "-" if threads == 1 else "--", points)


def http(document: Document) -> Any:
    """`bench http`: one bar, the CPU time of a request by what it was spent on."""
    axis = figure(PICTURE, 180).subplots()
    left = 0.0
    parts = (
        ("decode", "decode", BLUE, 0.32),
        ("forward", "forward", RED, -0.32),
        ("overhead", "server itself", GREEN, 0.32),
    )
    for key, name, colour, y in parts:  # thin parts have no room for their names: above and below in turns
        ms = document[f"{key}_cpu_ms_per_request"]
        axis.barh(0, ms, left=left, color=colour, height=0.5)
        va = "bottom" if y > 0 else "top"
        axis.annotate(f"{name} {ms:.2f}", (left + ms / 2, y), ha="center", va=va, color=colour)
        left += ms
    axis.set_ylim(-0.7, 0.7)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("CPU ms a request")
    rate, latency = document["requests_per_second"], document["latency_ms"]
    over = f"{rate:,.0f} requests/s over {document['concurrency']} connections"
    axis.set_title(f"{over}, p50 {latency['p50']:.1f} ms, p99 {latency['p99']:.1f} ms")
    return axis.figure


def kernels(document: Document) -> Any:
    """`bench kernels` and `bench.gpu`: the roofline, with the fastest way of each family, shape and batch below it.

    The roof is what a large copy and a large matrix product reached in the same run. Operations and bytes of a point
    are what its algorithm cannot avoid (`bench/gpu/rows.py`). What fits in a cache may lie above the slope.
    """
    best: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    for row in document["rows"]:
        key = (_family(row), row["what"], row["batch"])
        if row["us"] and row.get("moved_bytes") and (key not in best or row["us"] < best[key]["us"]):
            best[key] = row
    if not best:
        raise ValueError("no kernel was timed whose work is counted: there is nothing to draw")
    points: dict[str, list[tuple[float, float, str]]] = {}
    for (family, what, batch), row in best.items():
        short = f"{what.split()[0].rstrip(',')} ×{batch}"
        points.setdefault(family, []).append((row["flops"] / row["moved_bytes"], row["flops"] / row["us"] / 1e3, short))
    axis = figure(PICTURE, 480).subplots()
    _roof(axis, document["ceilings"], [point for family in points.values() for point in family])
    colours = dict(zip(points, SERIES, strict=False))
    for (family, members), mark in zip(points.items(), "os^D", strict=False):
        axis.plot(*zip(*(point[:2] for point in members), strict=True), mark, ms=7, color=colours[family], label=family)
    crowded = sum(map(len, points.values())) > 12  # then only the leftmost and the rightmost have room for names
    named = {name: {min(members), max(members)} if crowded else members for name, members in points.items()}
    label_ends(axis, [(*point, colours[family]) for family, members in named.items() for point in members])
    settings = document["settings"]
    device = document["device"].get("device") or document["machine"]["processor"]
    threads = f", {counted(settings['threads'], 'thread')}" if "threads" in settings else ""
    axis.set_title(f"{device}, {settings['dtype']}{threads}, nblocks {settings['nblocks']}")
    axis.legend(loc="upper left", ncols=len(points))
    return axis.figure


def _family(row: Mapping[str, Any]) -> str:
    dense = row["candidate"].startswith("dense")
    return f"{'dense' if dense else 'Monarch'} MLP" if row["section"] == "mlp" else str(row["section"])


def _roof(axis: Any, ceilings: Mapping[str, float], points: Sequence[tuple[float, float, str]]) -> None:
    slope, flat = ceilings["bytes_per_second"] / 1e9, ceilings["flops_per_second"] / 1e9
    ridge, xs, ys = flat / slope, [x for x, _, _ in points], [y for _, y, _ in points]
    low, high = min(ridge, *xs) / 1.6, max(ridge, *xs) * 2.5
    axis.plot([low, ridge, high], [low * slope, flat, flat], color=INK, lw=1.6)
    axis.annotate(f"copy: {slope:,.3g} GB/s", (low, low * slope), (8, -4), textcoords="offset points", va="top")
    axis.annotate(f"product: {flat:,.4g} GFLOP/s", (high, flat), (0, 5), textcoords="offset points", ha="right")
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(min(ys) / 1.6, max(flat, *ys) * 2.5))
    plain_log(axis.xaxis)
    plain_log(axis.yaxis)
    axis.set_xlabel("FLOP a byte, of the least bytes that the algorithm moves")
    axis.set_ylabel("GFLOP/s, measured")


def server(document: Document) -> Any:
    """`bench server`: latency by percentile and against load, and each overload over time."""
    rows = document["rows"]
    curves = [row for row in rows if row.get("curve")]
    loads = sorted((row for row in curves if row["section"] == "load" and row["rate"]), key=lambda row: row["rate"])
    overloads = [row for row in rows if row.get("timeline")]
    heights = [320 + 10 * len(curves)] * bool(curves) + [260] * bool(loads) + [220] * len(overloads)
    if not heights:
        raise ValueError("no row of an open loop was answered: there is nothing to draw")
    drawn = figure(PICTURE, sum(heights))
    axes = iter(drawn.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    if curves:
        _distribution(next(axes), curves)
    if loads:
        _against_load(next(axes), loads, document.get("capacity"))
    for row in overloads:
        _over_time(next(axes), row)
    return drawn


def _distribution(axis: Any, rows: Rows) -> None:
    """The share of requests answered within a time; the last percents are stretched, since users feel them."""

    def nines(percent: float) -> float:
        return -math.log10(max(1e-9, 1 - percent / 100))

    for row, colour in zip(rows, SERIES * len(rows), strict=False):
        accepted = row["statuses"].get("200", 0)
        resolved = 100 * (1 - 10 / accepted) if accepted > 10 else 0.0  # ten requests lie beyond
        points = [(ms, nines(percent)) for percent, ms in row["curve"] if percent <= resolved]
        what = row["what"] if row["section"] == "load" else f"{row['section']}, {row['what']}"
        axis.plot(*zip(*points, strict=True), color=colour, lw=1.8, label=f"{what}: {row['rate']:,.4g}/s")
    axis.set_xscale("log")
    plain_log(axis.xaxis)
    percents = (0, 50, 90, 99, 99.9)
    axis.set_yticks([nines(percent) for percent in percents], [f"{percent:g} %" for percent in percents])
    axis.set_ylim(0, None)
    axis.set_xlabel("ms from the intended start")
    axis.set_title("Good requests answered within so long (open loop)")
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2, fontsize=11)


def _against_load(axis: Any, rows: Rows, capacity: float | None) -> None:
    """Latency against requests a second, up to the capacity that a closed loop found."""
    rates, lines = [row["rate"] for row in rows], {"p50": BLUE, "p99": RED}
    for name, colour in lines.items():
        axis.plot(rates, [row["latency_ms"][name] for row in rows], "o-", color=colour, lw=1.8, ms=5)
    axis.set_xlim(0, 1.1 * max(*rates, capacity or 0.0))
    axis.set_yscale("log")
    plain_log(axis.yaxis)
    axis.margins(y=0.15)
    axis.set_xlabel("requests a second")
    axis.set_ylabel("ms")
    axis.set_title("Latency against load")
    label_ends(axis, [(rates[-1], rows[-1]["latency_ms"][name], name, colour) for name, colour in lines.items()])
    if capacity:
        axis.axvline(capacity, color=INK, lw=1, ls=DASHED)
        text = f"capacity {capacity:,.0f}/s "
        axis.annotate(text, (capacity, 0.04), xycoords=("data", "axes fraction"), ha="right")


def _over_time(axis: Any, row: Mapping[str, Any]) -> None:
    """What became of the requests of each half second, stacked; the line is the p99 of those accepted."""
    bins = row["timeline"]
    width = bins[1]["at"] - bins[0]["at"] if len(bins) > 1 else 1.0
    middles, base = [slot["at"] + width / 2 for slot in bins], [0.0] * len(bins)
    colours = {"200": GREEN, "503": ORANGE, "429": SKY, "504": RED, "timeout": PINK}
    names = {name for slot in bins for name in slot["statuses"]}
    for name in sorted(names, key=lambda name: (name != "200", name)):
        heights = [slot["statuses"].get(name, 0) / width for slot in bins]
        axis.bar(middles, heights, width * 0.95, base, color=colours.get(name, MUTED), label=name)
        base = [below + height for below, height in zip(base, heights, strict=True)]
    axis.set_ylim(0, 1.35 * max(base))
    axis.set_ylabel("requests a second")
    axis.set_xlabel("s")
    axis.set_title(f"Overload, {row['what']}: {row['goodput']:,.0f}/s good in time")
    axis.legend(loc="upper left", ncols=6, fontsize=10, handlelength=1)
    right = axis.twinx()
    right.grid(visible=False)
    accepted = [(at, slot["p99_ms"]) for at, slot in zip(middles, bins, strict=True) if slot["p99_ms"] is not None]
    if accepted:
        right.plot(*zip(*accepted, strict=True), color=INK, lw=1.4, marker=".", ms=4)
    right.set_ylim(0, max([row["timeout_ms"], *(ms for _, ms in accepted)]) * 1.35)
    right.set_ylabel("p99 of 200s, ms (line)")
