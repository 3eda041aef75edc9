"""Draws a report's charts, each in an axis of its own: quality against size, error by layer, the course of training."""

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from .document import Candidate, LayerRow, RunReport
from .drawing import PAGE, PICTURE, add_tooltip, figure, save_picture, style, to_svg
from .terms import block, candidate_text, layer_parts, shared_stem, structure_text, three_digits

MEASURES = {
    "top1": "top-1 accuracy, %",
    "agreement": "agreement with the dense model, %",
    "kl": "KL from the dense model, nats",
}
_TITLES = {
    **MEASURES,
    "loss": "training loss",
    "error": "relative error of the outputs",
    "sensitivity": "sensitivity: KL by this layer at half its weights, nats",
}
_COLORS = PAGE.palette
_MANY = 40
"""Losses above this number are drawn faint, with a running mean over them."""
_MOST_TICKS = 12

Draw = Callable[[Any, RunReport, str], None]
"""Draws one figure of the report, by its name, into an axis."""


def page_charts(report: RunReport) -> dict[str, list[str]]:
    """The charts of a report's page by section, as SVG; a section without figures has none.

    Raises:
        ImportError: matplotlib is not installed.
    """
    history = [name for name in ("loss", "top1", "kl") if len(_recorded(report, name)) > 1]
    sections: dict[str, tuple[Draw, list[str]]] = {
        "size": (draw_size, measures(report.curve)),
        "history": (draw_history, history),
        "layers": (draw_layers, _known(report.layers)),
    }
    return {
        section: [_page_svg(f"{section} {name}", draw, report, name) for name in names]
        for section, (draw, names) in sections.items()
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
    drawings: list[tuple[Draw, str, int]] = [(draw_size, name, 280) for name in measures(report.curve)]
    drawings += [(draw_layers, name, 230) for name in _known(report.layers)]
    if not drawings:
        raise ValueError("the report has no measured candidates and no errors of layers: there is nothing to draw")
    heights = [height for _, _, height in drawings]
    drawn = figure(PICTURE, sum(heights))
    axes = drawn.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axis, (draw, name, _) in zip(axes, drawings, strict=True):
        draw(axis, report, name)
    return drawn


def measures(curve: Sequence[Candidate]) -> list[str]:
    """The figures that candidates are compared by: top1, or agreement where that is missing; and kl."""
    quality = next((name for name in ("top1", "agreement") if measured(curve, name)), None)
    return [name for name in (quality, "kl") if name is not None and measured(curve, name)]


def measured(curve: Sequence[Candidate], name: str) -> list[tuple[Candidate, float]]:
    """The candidates that have this figure, with it."""
    found = ((candidate, getattr(candidate, name)) for candidate in curve)
    return [(candidate, value) for candidate, value in found if value is not None]


def best_at_size(curve: Sequence[Candidate], name: str) -> list[Candidate]:
    """The candidates that no other of their size or less equals, from small to large."""
    sign = -1 if name == "kl" else 1
    best: list[Candidate] = []
    record = float("-inf")
    for candidate, value in sorted(measured(curve, name), key=lambda pair: (pair[0].share, -sign * pair[1])):
        if sign * value > record:
            best.append(candidate)
            record = sign * value
    return best


def draw_size(axis: Any, report: RunReport, name: str) -> None:
    """Draw every candidate's figure against its parameters, join the best at each size, mark the chosen one."""
    curve = measured(report.curve, name)
    best = best_at_size(report.curve, name)
    xy = ([100 * candidate.share for candidate in best], [getattr(candidate, name) for candidate in best])
    axis.plot(*xy, color=_COLORS.accent, lw=1.8, label="best at its size", zorder=1.5)
    looks: dict[bool, dict[str, Any]] = {
        False: {"ms": 6, "color": _COLORS.muted, "alpha": 0.65},
        True: {"ms": 11, "color": _COLORS.chosen, "mec": _COLORS.paper, "mew": 2, "zorder": 4},
    }
    for chosen, look in looks.items():
        axis.plot([], [], "o", **look, label="chosen" if chosen else "tried")
    for candidate, value in curve:
        (point,) = axis.plot(100 * candidate.share, value, "o", **looks[candidate.chosen])
        add_tooltip(point, candidate_text(candidate))
    dense = {"top1": report.before.top1 if report.before else None, "agreement": 100.0, "kl": 0.0}[name]
    if dense is not None:
        axis.axhline(dense, color=_COLORS.ink, lw=1, ls=(0, (4, 3)), label="dense")
    values = [value for _, value in curve]
    if name == "kl" and _spans_decades(values):
        # Linear below the smallest figure, so that the dense model's zero has a place.
        axis.set_yscale("symlog", linthresh=min(value for value in values if value > 0))
        axis.set_ylim(0, 1.3 * max(values))
    _finish(axis, _TITLES[name], "parameters, % of the dense model")
    axis.legend(loc="best")


def draw_layers(axis: Any, report: RunReport, name: str) -> None:
    """Draw a bar for each layer, `error` or `sensitivity` high, coloured by the part of a block that it is."""
    rows = report.layers
    parts = layer_parts(rows)
    named = [part for part in dict.fromkeys(parts.values()) if part != "other"]
    colors = {**dict(zip(named, _COLORS.series, strict=False)), "other": _COLORS.series[-1]}
    for part, color in colors.items():
        places = [place for place, row in enumerate(rows) if parts[row.name] == part and getattr(row, name) is not None]
        heights = [getattr(rows[place], name) for place in places]
        if places:
            bars = axis.bar(places, heights, width=0.8, color=color, label=part)
            for place, bar in zip(places, bars.patches, strict=True):
                text = f"{name} {three_digits(bar.get_height())}, {structure_text(rows[place])}"
                add_tooltip(bar, f"{rows[place].name}: {text}")
    kept = [place for place, row in enumerate(rows) if row.kind == "dense"]
    if kept:
        axis.plot(kept, [0] * len(kept), "D", ms=4, color=_COLORS.ink, clip_on=False, label="kept dense", zorder=4)
    _finish(axis, _TITLES[name], "layers in the model's order, marked by block")
    _tick_blocks(axis, rows)
    axis.set_xlim(-0.8, max(len(rows), 12) - 0.2)  # a few bars need not fill the width
    axis.grid(axis="x", visible=False)
    axis.set_ylim(0, 1.35 * axis.get_ylim()[1])  # room for the legend
    axis.legend(ncols=5, loc="upper left", handlelength=1, columnspacing=1.2)


def draw_history(axis: Any, report: RunReport, name: str) -> None:
    """Draw the loss by step, or a figure that was measured on held-out images on the way."""
    course = _recorded(report, name)
    phases = list(dict.fromkeys(str(row.get("phase", "")) for row in report.history))
    for place, phase in enumerate(phases):
        color = _COLORS.series[place % len(_COLORS.series)]
        x = [step for step, which, _ in course if which == phase]
        y = [value for _, which, value in course if which == phase]
        if name == "loss" and len(y) > _MANY:
            axis.plot(x, y, color=color, lw=0.8, alpha=0.35)
            axis.plot(x, _smoothed(y), color=color, lw=2, label=phase)
        else:
            axis.plot(x, y, "o-", color=color, lw=1.8, ms=4, label=phase)
    if name != "top1" and _spans_decades([value for _, _, value in course]):
        axis.set_yscale("log")
    _finish(axis, _TITLES[name] if name == "loss" else f"{_TITLES[name]}, on held-out images", "step")
    if len(phases) > 1:
        axis.legend(loc="best")


def _page_svg(salt: str, draw: Draw, report: RunReport, name: str) -> str:
    with style(salt):
        drawn = figure(PAGE, 270)
        axis = drawn.subplots()
        draw(axis, report, name)
        return to_svg(drawn, f"{axis.get_title()}, against {axis.get_xlabel()}")


def _known(rows: Sequence[LayerRow]) -> list[str]:
    """The figures that any layer has: `error`, `sensitivity`."""
    return [name for name in ("error", "sensitivity") if any(getattr(row, name) is not None for row in rows)]


def _tick_blocks(axis: Any, rows: Sequence[LayerRow]) -> None:
    """Set one tick a block, at its first layer; of many blocks every n-th, so that they don't touch."""
    groups = groupby(enumerate(rows), key=lambda pair: block(pair[1].name))
    starts = [(next(members)[0], name) for name, members in groups if name]
    stem = shared_stem([name for _, name in starts])
    shown = starts[:: max(1, -(-len(starts) // _MOST_TICKS))]
    axis.set_xticks([place for place, _ in shown], [name.removeprefix(stem) for _, name in shown])


def _recorded(report: RunReport, name: str) -> list[tuple[float, str, float]]:
    """Steps, phases and values of one figure of the history, where it was recorded.

    Steps go on through the phases, even where each phase counts from its own start.
    """
    found: list[tuple[float, str, float]] = []
    offset = last = 0.0
    for place, row in enumerate(report.history):
        step, value = (number if isinstance(number := row.get(key), float | int) else None for key in ("step", name))
        at = offset + (place if step is None else step)
        if at < last:
            offset, at = offset + last - at, last
        last = at
        if value is not None:
            found.append((at, str(row.get("phase", "")), value))
    return found


def _finish(axis: Any, title: str, xlabel: str) -> None:
    """Name the axis, and write its numbers as a person does, on logarithmic scales too."""
    axis.set_title(title)
    axis.set_xlabel(xlabel)
    for numbers in (axis.xaxis, axis.yaxis):
        numbers.set_major_formatter(lambda value, _: f"{value:g}")


def _smoothed(values: Sequence[float]) -> list[float]:
    """Mean of each value's neighbourhood, a twentieth of the curve to both sides together."""
    sums = [0.0, *accumulate(values)]
    reach = max(1, len(values) // 40)
    bounds = [(max(0, place - reach), min(len(values), place + reach + 1)) for place in range(len(values))]
    return [(sums[end] - sums[begin]) / (end - begin) for begin, end in bounds]


def _spans_decades(values: Sequence[float]) -> bool:
    return len(values) > 1 and min(values) >= 0 and max(values) > 30 * min((v for v in values if v > 0), default=1e30)
