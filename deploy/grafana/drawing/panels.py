"""One panel on a picture: lines, areas, heatmaps, figures and tables."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.dates import AutoDateLocator, DateFormatter, date2num
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .prometheus import Series
from .units import written

TEXT, FAINT, GRID = "#ccccdc", "#8e8e9c", "#2c2f34"
COLOURS = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#705da0", "#37872d", "#a352cc")
LEGEND_LINES = 4
NAMED = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c"}


class Drawn(NamedTuple):
    """A series under the name that the legend gives it."""

    name: str
    series: Series


def draw(axes: Axes, panel: Mapping[str, Any], found: Sequence[Drawn]) -> None:
    """Draw what a panel's queries found; its title is not part of it."""
    axes.set_facecolor("none")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(colors=FAINT, labelsize=6.5, length=0)
    if not found or all(math.isnan(value) for each in found for value in each.series.values):
        axes.set_axis_off()
        axes.text(0.5, 0.5, "No data", color=FAINT, ha="center", va="center", fontsize=9, transform=axes.transAxes)
        return
    {"timeseries": _lines, "heatmap": _heatmap, "stat": _figure, "table": _table}[panel["type"]](axes, panel, found)


def _lines(axes: Axes, panel: Mapping[str, Any], found: Sequence[Drawn]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    unit, stacked = defaults["unit"], defaults["custom"]["stacking"]["mode"] == "normal"
    limits = {each["matcher"]["options"] for each in panel["fieldConfig"].get("overrides", [])}
    columns = 3 if max(len(each.name) for each in found) < 18 else 1
    below: dict[float, float] = {}
    for place, (name, series) in enumerate(found):
        colour = NAMED["red"] if name in limits else COLOURS[place % len(COLOURS)]
        days = _days(series.times)
        floor = [below.get(time, 0.0) if stacked else 0.0 for time in series.times]
        height = [
            base + (0.0 if stacked and math.isnan(value) else value)
            for base, value in zip(floor, series.values, strict=True)
        ]
        if stacked:
            below |= dict(zip(series.times, height, strict=True))
        axes.plot(days, height, color=colour, linewidth=0.9, linestyle="--" if name in limits else "-")
        if name not in limits:
            axes.fill_between(days, floor, height, color=colour, alpha=0.45 if stacked else 0.08, linewidth=0)
        known = [value for value in series.values if not math.isnan(value)]
        if place < LEGEND_LINES * columns:  # there is no room for more
            label = f"{name.strip()}  {written(known[-1], unit) if known else '-'}"
            axes.plot([], [], color=colour, linewidth=2.5, label=label)
    axes.set_ylim(bottom=0, top=defaults.get("max"))
    if axes.get_ylim()[1] <= 1e-9:
        axes.set_ylim(top=1)
    axes.grid(color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, unit)))
    _time_axis(axes)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.1),
        ncols=columns,
        fontsize=6.5,
        frameon=False,
        labelcolor=TEXT,
        handlelength=1,
        columnspacing=1,
        labelspacing=0.25,
    )


def _heatmap(axes: Axes, panel: Mapping[str, Any], found: Sequence[Drawn]) -> None:
    """Buckets are cumulative; a cell is what fell between two of them."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    rows = sorted((float(each.series.labels["le"]), each.series) for each in found)
    times = sorted({time for _, series in rows for time in series.times})
    cells: list[list[float]] = []
    before = [0.0] * len(times)
    for _, series in rows:
        value_at = dict(zip(series.times, series.values, strict=True))
        now = [value_at.get(time, 0.0) for time in times]
        between = [upper - lower for upper, lower in zip(now, before, strict=True)]
        cells.append([value if value > 1e-9 else math.nan for value in between])
        before = now
    edges = list(range(len(rows) + 1))
    step = times[1] - times[0] if len(times) > 1 else 1.0
    days = _days([*times, times[-1] + step])
    mesh = axes.pcolormesh(days, edges, cells, cmap="inferno", norm=PowerNorm(0.5))
    axes.set_yticks(edges[1::3], [_bound(rows[edge - 1][0], unit) for edge in edges[1::3]])
    _time_axis(axes)
    bar = axes.figure.colorbar(mesh, ax=axes, orientation="horizontal", fraction=0.04, pad=0.12, aspect=60)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=FAINT, labelsize=6, length=0)
    bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, "reqps")))


def _bound(value: float, unit: str) -> str:
    return "+Inf" if math.isinf(value) else written(value, unit)


def _figure(axes: Axes, panel: Mapping[str, Any], found: Sequence[Drawn]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    series = found[0].series
    last = [value for value in series.values if not math.isnan(value)][-1]
    colour = NAMED["green"]
    for step in defaults["thresholds"]["steps"]:
        if step["value"] is None or last >= step["value"]:
            colour = NAMED[step["color"]]
    axes.fill_between(_days(series.times), 0, series.values, color=colour, alpha=0.2, linewidth=0)
    axes.plot(_days(series.times), series.values, color=colour, linewidth=0.8)
    # The figure stands above its own past.
    top = max(value for value in series.values if not math.isnan(value))
    axes.set_ylim(0, (top or 1.0) * 3)
    axes.set_axis_off()
    axes.text(
        0.5,
        0.62,
        written(last, defaults["unit"]),
        color=colour,
        fontsize=17,
        ha="center",
        va="center",
        transform=axes.transAxes,
    )


def _table(axes: Axes, panel: Mapping[str, Any], found: Sequence[Drawn]) -> None:
    order = next(each["options"] for each in panel["transformations"] if each["id"] == "organize")["indexByName"]
    columns = sorted(order, key=lambda name: int(order[name]))
    axes.set_axis_off()
    table = axes.table(
        cellText=[[each.series.labels.get(column, "") for column in columns] for each in found],
        colLabels=columns,
        loc="upper center",
        cellLoc="left",
        edges="horizontal",
    )
    table.auto_set_font_size(False)
    table.set_fontsize(6)
    for (row, _), cell in table.get_celld().items():
        cell.set_edgecolor(GRID)
        cell.get_text().set_color("#6e9fff" if row == 0 else TEXT)


def _days(times: Sequence[float]) -> list[float]:
    return [float(date2num(datetime.fromtimestamp(time))) for time in times]


def _time_axis(axes: Axes) -> None:
    axes.xaxis.set_major_locator(AutoDateLocator(maxticks=7))
    axes.xaxis.set_major_formatter(
        DateFormatter("%H:%M" if axes.get_xlim()[1] - axes.get_xlim()[0] > 0.007 else "%H:%M:%S")
    )
    axes.margins(x=0)
