"""Draws a dashboard from a real Prometheus: `python deploy/grafana/draw.py service.json --out service.png`.

For pages that have no Grafana: each panel in its place, under its title, with the answers to its own queries.
Needs matplotlib.
"""

import argparse
import json
import re
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # PYTHONSAFEPATH keeps a script's own folder out

import matplotlib  # noqa: E402

matplotlib.use("Agg")

from drawing.panels import FAINT, TEXT, Drawn, draw  # noqa: E402
from drawing.prometheus import Prometheus, Span  # noqa: E402
from drawing.variables import chosen, filled  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.patches import FancyBboxPatch  # noqa: E402

COLUMNS = 24
COLUMN_INCHES, LINE_INCHES = 0.62, 0.36  # a cell of Grafana's grid in a window of some 1500 pixels
PAPER, CARD = "#111217", "#181b1f"


def main() -> None:
    """Ask, draw, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dashboard", type=Path, help="JSON file, or its name in dashboards/")
    parser.add_argument("--prometheus", default="http://localhost:9090", help="URL of its root")
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    parser.add_argument("--minutes", type=float, default=15.0, help="how far to look back")
    parser.add_argument("--end", type=float, default=None, help="until when, seconds since 1970; now")
    parser.add_argument("--points", type=int, default=180, help="of a line")
    parser.add_argument("--scrape-seconds", type=float, default=5.0, help="between two scrapes")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="value of a variable")
    parser.add_argument("--rows", default="", help="titles of the rows to draw, separated by commas; all")
    asked = parser.parse_args()

    path = asked.dashboard if asked.dashboard.exists() else HERE / "dashboards" / asked.dashboard
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    end = asked.end or time.time()
    step = max(asked.minutes * 60 / asked.points, 1.0)
    span = Span(end - asked.minutes * 60, end, step)
    source = Prometheus(asked.prometheus)
    values = chosen(dashboard, source, span, asked.scrape_seconds, dict(each.split("=", 1) for each in asked.set))
    panels = only_rows(dashboard["panels"], {row for row in asked.rows.split(",") if row})
    picture(dashboard["title"], panels, source, span, values).savefig(asked.out, dpi=100, facecolor=PAPER)


def only_rows(panels: list[dict[str, Any]], titles: set[str]) -> list[dict[str, Any]]:
    """The panels below the named rows, moved up to where there is place; all without names.

    Raises:
        SystemExit: there is no such row.
    """
    unknown = titles - {panel["title"] for panel in panels if panel["type"] == "row"}
    if unknown:
        raise SystemExit(f"no row is called {', '.join(sorted(unknown))}")
    kept: list[dict[str, Any]] = []
    gap, wanted, last = 0, True, 0
    for panel in panels:
        place = panel["gridPos"]
        if panel["type"] == "row":
            wanted = not titles or panel["title"] in titles
            gap = place["y"] - last
        if wanted:
            kept.append(panel | {"gridPos": place | {"y": place["y"] - gap}})
            last = max(last, place["y"] - gap + place["h"])
    return kept


def picture(
    title: str, panels: list[dict[str, Any]], source: Prometheus, span: Span, values: Mapping[str, str]
) -> Figure:
    """The dashboard as a figure."""
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) + 1
    width, height = COLUMNS * COLUMN_INCHES, lines * LINE_INCHES
    figure = Figure(figsize=(width, height))
    figure.text(0.006, 1 - 0.5 / lines, title, color=TEXT, fontsize=11, va="center", weight="bold")
    when = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment)) for moment in (span.start, span.end)]
    figure.text(0.994, 1 - 0.5 / lines, " to ".join(when), color=FAINT, fontsize=7, va="center", ha="right")
    for panel in panels:
        place = panel["gridPos"]
        left, top = place["x"] / COLUMNS, 1 - (place["y"] + 1) / lines
        wide, high = place["w"] / COLUMNS, place["h"] / lines
        if panel["type"] == "row":
            figure.text(left + 0.006, top - high / 2, f"v  {panel['title']}", color=TEXT, fontsize=9, va="center")
            continue
        _card(figure, left, top - high, wide, high, lines)
        text = textwrap.shorten(filled(panel["title"], values), 60)
        figure.text(left + 0.007, top - 0.55 / lines, text, color=TEXT, fontsize=7.5, va="center", weight="bold")
        draw(
            figure.add_axes(_inside(panel, left, top - high, wide, high, lines)),
            panel,
            found(panel, source, span, values),
        )
    return figure


def found(panel: Mapping[str, Any], source: Prometheus, span: Span, values: Mapping[str, str]) -> list[Drawn]:
    """What a panel's queries find, in their order."""
    series = []
    for target in panel["targets"]:
        expr = filled(target["expr"], values)
        answer = source.at(expr, span.end) if target.get("instant") else source.over(expr, span)
        series += [Drawn(_legend(target.get("legendFormat", ""), each.labels), each) for each in answer]
    return series


def _legend(form: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{ *(\w+) *\}\}", lambda match: labels.get(match[1], ""), form)


def _card(figure: Figure, left: float, bottom: float, wide: float, high: float, lines: int) -> None:
    figure.add_artist(
        FancyBboxPatch(
            (left + 0.002, bottom + 0.08 / lines),
            wide - 0.004,
            high - 0.16 / lines,
            boxstyle="square,pad=0",
            facecolor=CARD,
            edgecolor="#2a2d32",
            linewidth=0.6,
            zorder=-1,
        )
    )


def _inside(
    panel: Mapping[str, Any], left: float, bottom: float, wide: float, high: float, lines: int
) -> tuple[float, float, float, float]:
    """Where the drawing itself goes: below the title, above the legend, beside the axis."""
    if panel["type"] == "stat":
        return (left + 0.004, bottom + 0.15 / lines, wide - 0.008, high - 1.2 / lines)
    axis, legend = (0.01, 0.3) if panel["type"] == "table" else (0.042, 1.0 if panel["type"] == "heatmap" else 2.3)
    return (left + axis, bottom + legend / lines, wide - axis - 0.012, high - (legend + 1.1) / lines)


if __name__ == "__main__":
    main()
