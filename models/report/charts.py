"""Draws the charts of a report's page, each in an axis of its own: the course of training, the error by layer."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from .document import RunReport
from .drawing import INK, PAGE, SERIES, add_tooltip, figure, style, to_svg
from .terms import structure_text, three_digits

COURSES = {"loss": "training loss", "top1": "top-1 accuracy, %, on held-out images"}
"""Figures of the history that are drawn."""


def page_charts(report: RunReport) -> dict[str, list[str]]:
    """The charts of a report's page by section, as SVG; a section without figures has none.

    Raises:
        ImportError: matplotlib is not installed.
    """
    courses = [name for name in COURSES if len(_course(report, name)) > 1]
    errors = any(row.error is not None for row in report.layers)
    return {
        "history": [_page_svg(f"history {name}", partial(draw_history, report=report, name=name)) for name in courses],
        "layers": [_page_svg("layers error", partial(draw_layers, report=report))] if errors else [],
    }


def draw_layers(axis: Any, report: RunReport) -> None:
    """Draw the error of every layer as a bar; layers whose names end alike have one colour."""
    words = [row.name.rpartition(".")[2] for row in report.layers]
    colors = dict(zip((word for word, _ in Counter(words).most_common()), SERIES[:-1], strict=False))
    for place, (row, word) in enumerate(zip(report.layers, words, strict=True)):
        if row.error is not None:
            label = word if word in colors else "other"
            (bar,) = axis.bar(place, row.error, color=colors.get(word, SERIES[-1]), label=label)
            add_tooltip(bar, f"{row.name}: error {three_digits(row.error)}, {structure_text(row)}")
        if row.kind == "dense":
            axis.plot(place, 0, "D", ms=4, color=INK, clip_on=False, label="kept dense", zorder=4)
    axis.set_xlim(-0.8, max(len(words), 12) - 0.2)  # a few bars need not fill the width
    axis.grid(axis="x", visible=False)
    axis.set_ylim(0, 1.35 * axis.get_ylim()[1])  # room for the legend
    _finish(axis, "relative error of the outputs", "layers in the model's order")
    handles, labels = axis.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    if len(once) > 1:
        axis.legend(once.values(), once.keys(), ncols=5, loc="upper left", handlelength=1, columnspacing=1.2)


def draw_history(axis: Any, report: RunReport, name: str) -> None:
    """Draw a figure of COURSES by step."""
    steps, values = zip(*_course(report, name), strict=True)
    axis.plot(steps, values, ".-", color=SERIES[0], lw=1.4, ms=4)
    least = min((value for value in values if value > 0), default=inf)
    if name == "loss" and min(values) >= 0 and max(values) > 30 * least:
        axis.set_yscale("log")
    _finish(axis, COURSES[name], "step")


def _page_svg(salt: str, draw: Callable[[Any], None]) -> str:
    with style(salt):
        drawn = figure(PAGE, 270)
        axis = drawn.subplots()
        draw(axis)
        return to_svg(drawn, f"{axis.get_title()}, against {axis.get_xlabel()}")


def _course(report: RunReport, name: str) -> list[tuple[int, float]]:
    """Steps and values of one figure of the history, where it was recorded."""
    return [(row["step"], row[name]) for row in report.history if row.get(name) is not None]  # type: ignore[misc]


def _finish(axis: Any, title: str, xlabel: str) -> None:
    """Name the axis, and write its numbers as a person does, on logarithmic scales too."""
    axis.set_title(title)
    axis.set_xlabel(xlabel)
    for numbers in (axis.xaxis, axis.yaxis):
        numbers.set_major_formatter(lambda value, _: f"{value:g}")
