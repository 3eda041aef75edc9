"""Draws a report's charts, each in an axis of its own: quality against size, error by layer, the course of training."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from .document import CurvePoint, RunReport
from .drawing import INK, MUTED, PAGE, PAPER, PICTURE, SERIES, add_tooltip, figure, save_picture, style, to_svg
from .terms import candidate_text, structure_text, three_digits

MEASURES = {
    "top1": "top-1 accuracy, %",
    "agreement": "agreement with the dense model, %",
    "kl": "KL from the dense model, nats",
}
_LAYER_MEASURES = {
    "error": "relative error of the outputs",
    "sensitivity": "sensitivity: KL by this layer at half its weights, nats",
}
_COURSES = {"loss": "training loss"} | {name: f"{MEASURES[name]}, on held-out images" for name in ("top1", "kl")}

Draw = Callable[[Any, RunReport, str], None]
"""Draws one figure of the report, by its name, into an axis."""


def page_charts(report: RunReport) -> dict[str, list[str]]:
    """The charts of a report's page by section, as SVG; a section without figures has none.

    Raises:
        ImportError: matplotlib is not installed.
    """
    return {
        section: [_page_svg(f"{section} {name}", draw, report, name) for draw, name in charts]
        for section, charts in _charts(report).items()
    }


def plot_report(report: RunReport, out: Path) -> Path:
    """Write the report's candidates and layers as one picture; SVG or PNG, as the name ends.

    Raises:
        ValueError: the report has neither candidates nor errors, or the name is of no picture.
        ImportError: matplotlib is not installed.
    """
    return save_picture(lambda: draw_report(report), out)


def draw_report(report: RunReport) -> Any:
    """The figure of `plot_report`; raises ValueError where there is nothing to draw."""
    sections = _charts(report)
    charts = sections["size"] + sections["layers"]
    if not charts:
        raise ValueError("the report has no measured candidates and no errors of layers: there is nothing to draw")
    drawn = figure(PICTURE, 255 * len(charts))
    for axis, (draw, name) in zip(drawn.subplots(len(charts), 1, squeeze=False)[:, 0], charts, strict=True):
        draw(axis, report, name)
    return drawn


def measures(curve: Sequence[CurvePoint]) -> list[str]:
    """The figures that candidates are compared by: top1, or agreement where that is missing; and kl."""
    quality = next((name for name in ("top1", "agreement") if measured(curve, name)), None)
    return [name for name in (quality, "kl") if name is not None and measured(curve, name)]


def measured(curve: Sequence[CurvePoint], name: str) -> list[tuple[CurvePoint, float]]:
    """The candidates that have this figure, with it."""
    figures = ((candidate, getattr(candidate, name)) for candidate in curve)
    return [(candidate, value) for candidate, value in figures if value is not None]


def best_at_size(curve: Sequence[CurvePoint], name: str) -> list[CurvePoint]:
    """The candidates that no other of their size or less equals, from small to large."""
    sign = -1 if name == "kl" else 1
    points = [(candidate.share, sign * value, candidate) for candidate, value in measured(curve, name)]
    points.sort(key=lambda point: (point[0], -point[1]))
    records = accumulate((value for _, value, _ in points), max, initial=float("-inf"))
    return [candidate for (_, value, candidate), record in zip(points, records, strict=False) if value > record]


def draw_size(axis: Any, report: RunReport, name: str) -> None:
    """Draw every candidate's figure against its parameters, join the best at each size, mark the chosen one."""
    best = best_at_size(report.curve, name)
    xy = ([100 * candidate.share for candidate in best], [getattr(candidate, name) for candidate in best])
    axis.plot(*xy, color=SERIES[0], lw=1.8, label="best at its size", zorder=1.5)
    tried = {"ms": 6, "color": MUTED, "alpha": 0.65, "label": "tried"}
    chosen = {"ms": 11, "color": SERIES[1], "mec": PAPER, "mew": 2, "zorder": 4, "label": "chosen"}
    points = measured(report.curve, name)
    for candidate, value in points:
        (point,) = axis.plot(100 * candidate.share, value, "o", **(chosen if candidate.chosen else tried))
        add_tooltip(point, candidate_text(candidate))
    dense = {"top1": report.before.top1 if report.before else None, "agreement": 100.0, "kl": 0.0}[name]
    if dense is not None:
        axis.axhline(dense, color=INK, lw=1, ls=(0, (4, 3)), label="dense")
    values = [value for _, value in points]
    if name == "kl" and _spans_decades(values):
        # Linear below the smallest figure, so that the dense model's zero has a place.
        axis.set_yscale("symlog", linthresh=min(value for value in values if value > 0))
        axis.set_ylim(0, 1.3 * max(values))
    _finish(axis, MEASURES[name], "parameters, % of the dense model")


def draw_layers(axis: Any, report: RunReport, name: str) -> None:
    """Draw a bar for each layer, `error` or `sensitivity` high, coloured by the last word of its name."""
    words = [row.name.rpartition(".")[2] for row in report.layers]
    colors = dict(zip((word for word, _ in Counter(words).most_common()), SERIES[:-1], strict=False))
    for place, (row, word) in enumerate(zip(report.layers, words, strict=True)):
        value = getattr(row, name)
        if value is not None:
            label = word if word in colors else "other"
            (bar,) = axis.bar(place, value, color=colors.get(word, SERIES[-1]), label=label)
            add_tooltip(bar, f"{row.name}: {name} {three_digits(value)}, {structure_text(row)}")
        if row.kind == "dense":
            axis.plot(place, 0, "D", ms=4, color=INK, clip_on=False, label="kept dense", zorder=4)
    axis.set_xlim(-0.8, max(len(words), 12) - 0.2)  # a few bars need not fill the width
    axis.grid(axis="x", visible=False)
    axis.set_ylim(0, 1.35 * axis.get_ylim()[1])  # room for the legend
    title, legend = _LAYER_MEASURES[name], {"ncols": 5, "loc": "upper left", "handlelength": 1, "columnspacing": 1.2}
    _finish(axis, title, "layers in the model's order", **legend)


def draw_history(axis: Any, report: RunReport, name: str) -> None:
    """Draw the loss by step, or a figure that was measured on held-out images on the way; a line for each phase."""
    course = _course(report, name)
    for place, phase in enumerate(dict.fromkeys(phase for _, phase, _ in course)):
        xy = zip(*((step, value) for step, which, value in course if which == phase), strict=True)
        axis.plot(*xy, ".-", color=SERIES[place % len(SERIES)], lw=1.4, ms=4, label=phase)
    if name != "top1" and _spans_decades([value for _, _, value in course]):
        axis.set_yscale("log")
    _finish(axis, _COURSES[name], "step")


def _charts(report: RunReport) -> dict[str, list[tuple[Draw, str]]]:
    """What can be drawn of the report, by the page's section."""
    rows = report.layers
    known = (name for name in _LAYER_MEASURES if any(getattr(row, name) is not None for row in rows))
    return {
        "size": [(draw_size, name) for name in measures(report.curve)],
        "history": [(draw_history, name) for name in _COURSES if len(_course(report, name)) > 1],
        "layers": [(draw_layers, name) for name in known],
    }


def _page_svg(salt: str, draw: Draw, report: RunReport, name: str) -> str:
    with style(salt):
        drawn = figure(PAGE, 270)
        axis = drawn.subplots()
        draw(axis, report, name)
        return to_svg(drawn, f"{axis.get_title()}, against {axis.get_xlabel()}")


def _course(report: RunReport, name: str) -> list[tuple[float, str, float]]:
    """Steps, phases and values of one figure of the history, where it was recorded.

    Steps go on through the phases, even where each phase counts from its own start.
    """
    points: list[tuple[float, str, float]] = []
    offset = last = 0.0
    for row in report.history:
        step, value = row.get("step"), row.get(name)
        if isinstance(step, float | int):
            offset = max(offset, last - step)
            last = offset + step
        if isinstance(value, float | int):
            points.append((last, str(row.get("phase", "")), value))
    return points


def _finish(axis: Any, title: str, xlabel: str, **legend: Any) -> None:
    """Name the axis and its lines, and write its numbers as a person does, on logarithmic scales too."""
    axis.set_title(title)
    axis.set_xlabel(xlabel)
    for numbers in (axis.xaxis, axis.yaxis):
        numbers.set_major_formatter(lambda value, _: f"{value:g}")
    handles, labels = axis.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    if len(once) > 1:
        # "best" by name: as the default, Matplotlib warns of it where the machine stalls for a second.
        axis.legend(once.values(), once.keys(), **{"loc": "best", **legend})


def _spans_decades(values: Sequence[float]) -> bool:
    positive = [value for value in values if value > 0]
    return min(values) >= 0 and len(positive) > 1 and max(positive) > 30 * min(positive)
