"""The drawings of a report: quality against size, error by layer, the course of training."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

from .curve import MEASURES, best_at_size, candidate_text, measured, measures
from .document import LayerRow, RunReport
from .drawing import NARROW, WIDE, Canvas, Palette, figure, style, tell, to_svg
from .layer_names import block, layer_parts, shared_stem, structure_text
from .spelling import three_digits

_TITLES = {
    **MEASURES,
    "loss": "training loss",
    "error": "relative error of the outputs",
    "sensitivity": "sensitivity: KL by this layer at half its weights, nats",
}
_MANY = 40
"""Values of a loss above which they are drawn faint, with a running mean over them."""


def draw(salt: str, chart: Callable[[RunReport, Canvas], str | None], report: RunReport) -> tuple[str, str] | None:
    """A chart as two SVGs, for a wide and for a narrow page; None where the report has nothing for it."""
    drawings = []
    for canvas in (WIDE, NARROW):
        with style(f"{salt} {canvas.width_px}"):
            drawings.append(chart(report, canvas))
    wide, narrow = drawings
    return None if wide is None or narrow is None else (wide, narrow)


def size_chart(report: RunReport, canvas: Canvas) -> str | None:
    """Accuracy and KL of every candidate against its parameters."""
    panels = measures(report.curve)
    if not panels:
        return None
    beside = len(panels) if canvas.wide else 1
    drawn = figure(canvas, 400 if canvas.wide else 300 * len(panels) + 60)
    axes = drawn.subplots(len(panels) // beside, beside, squeeze=False).flat
    for axis, name in zip(axes, panels, strict=True):
        size_panel(axis, report, name, canvas.palette)
    _legend(drawn, 4 if canvas.wide else 2)
    return to_svg(drawn, f"{len(report.curve)} candidates: {_titles(panels)} against parameters")


def layer_chart(report: RunReport, canvas: Canvas) -> str | None:
    """Bars of the outputs' error, and of the sensitivity, by layer in the model's order."""
    rows = report.layers
    panels = layer_panels(rows)
    if not panels:
        return None
    drawn = figure(canvas, 250 * len(panels) + 50)
    for axis, name in zip(drawn.subplots(len(panels), 1, sharex=True, squeeze=False).flat, panels, strict=True):
        layer_panel(axis, rows, name, canvas.palette)
    block_ticks(drawn.axes[-1], rows, 14 if canvas.wide else 7)
    _legend(drawn, 7 if canvas.wide else 4, handlelength=1)
    return to_svg(drawn, f"{_titles(panels)} of {len(rows)} layers")


def history_chart(report: RunReport, canvas: Canvas) -> str | None:
    """Loss by step, and what was measured on held-out images on the way."""
    panels = [name for name in ("loss", "top1", "kl") if len(_course(report, name)) > 1]
    if not panels:
        return None
    drawn = figure(canvas, 210 * len(panels) + 60)
    for axis, name in zip(drawn.subplots(len(panels), 1, sharex=True, squeeze=False).flat, panels, strict=True):
        _history_panel(axis, report, name, canvas.palette)
    drawn.axes[-1].set_xlabel("step")
    if len(_phases(report)) > 1:
        _legend(drawn, 4 if canvas.wide else 2)
    return to_svg(drawn, f"{_titles(panels)} over {len(report.history)} recorded steps")


def layer_panels(rows: Sequence[LayerRow]) -> list[str]:
    """What is known of any layer: `error`, `sensitivity`."""
    return [name for name in ("error", "sensitivity") if any(getattr(row, name) is not None for row in rows)]


def size_panel(axis: Any, report: RunReport, name: str, palette: Palette) -> None:
    """Every candidate's `name` against its parameters, the best at each size joined, the chosen one marked."""
    curve = measured(report.curve, name)
    for candidate, value in curve:
        if not candidate.chosen:
            point = axis.plot(100 * candidate.share, value, "o", ms=6, color=palette.muted, alpha=0.65)
            tell(point[0], candidate_text(candidate))
    best = best_at_size(report.curve, name)
    axis.plot(
        [100 * candidate.share for candidate in best],
        [getattr(candidate, name) for candidate in best],
        color=palette.accent,
        lw=1.8,
        label="best at its size",
        zorder=1.5,
    )
    axis.plot([], [], "o", ms=6, color=palette.muted, alpha=0.65, label="tried")
    axis.plot([], [], "o", ms=9, color=palette.chosen, label="chosen")
    for candidate, value in curve:
        if candidate.chosen:
            point = axis.plot(
                100 * candidate.share, value, "o", ms=11, color=palette.chosen, mec=palette.paper, mew=2, zorder=4
            )
            tell(point[0], candidate_text(candidate))
    dense = {"top1": report.before.top1 if report.before else None, "agreement": 100.0, "kl": 0.0}[name]
    if dense is not None:
        axis.axhline(dense, color=palette.ink, lw=1, ls=(0, (4, 3)), label="dense")
    values = [value for _, value in curve]
    if name == "kl" and _spans_decades(values):
        # Linear below the smallest figure, so that the dense model's zero has a place.
        axis.set_yscale("symlog", linthresh=min(value for value in values if value > 0))
        axis.set_ylim(0, 1.3 * max(values))
    axis.set_title(_TITLES[name])
    axis.set_xlabel("parameters, % of the dense model")
    _plain_numbers(axis)


def layer_panel(axis: Any, rows: Sequence[LayerRow], name: str, palette: Palette) -> None:
    """A bar a layer, `error` or `sensitivity` high, coloured by what part of a block it is."""
    parts = layer_parts(rows)
    named = [part for part in dict.fromkeys(parts.values()) if part != "other"]
    colors = {**dict(zip(named, palette.series, strict=False)), "other": palette.series[-1]}
    for part in [*named, *(["other"] if "other" in parts.values() else [])]:
        axis.bar(0, 0, color=colors[part], label=part)  # for the legend, in the model's order
    for place, row in enumerate(rows):
        value = getattr(row, name)
        if value is not None:
            bars = axis.bar(place, value, width=0.8, color=colors[parts[row.name]])
            tell(bars.patches[0], f"{row.name}: {name} {three_digits(value)}, {structure_text(row)}")
    kept = [place for place, row in enumerate(rows) if row.kind == "dense"]
    if kept:
        axis.plot(kept, [0] * len(kept), "D", ms=4, color=palette.ink, clip_on=False, label="kept dense", zorder=4)
    axis.set_title(_TITLES[name])
    axis.set_xlim(-0.8, max(len(rows), 12) - 0.2)  # a few bars need not fill the width
    axis.grid(axis="x", visible=False)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def block_ticks(axis: Any, rows: Sequence[LayerRow], most: int) -> None:
    """One tick a block, at its first layer; thinned so that they don't touch."""
    starts = []
    for name, members in groupby(enumerate(rows), key=lambda pair: block(pair[1].name)):
        starts.append((next(members)[0], name))
    stem = shared_stem([name for _, name in starts if name])
    shown = [(place, name.removeprefix(stem)) for place, name in starts if name]
    shown = shown[:: max(1, -(-len(shown) // most))]
    axis.set_xticks([place for place, _ in shown], [text for _, text in shown])
    axis.set_xlabel("layers in the model's order, marked by block")


def _history_panel(axis: Any, report: RunReport, name: str, palette: Palette) -> None:
    course = _course(report, name)
    for place, phase in enumerate(_phases(report)):
        color = palette.series[place % len(palette.series)]
        x = [step for step, which, _ in course if which == phase]
        y = [value for _, which, value in course if which == phase]
        if name == "loss" and len(y) > _MANY:
            axis.plot(x, y, color=color, lw=0.8, alpha=0.35)
            axis.plot(x, _smoothed(y), color=color, lw=2, label=phase)
        else:
            axis.plot(x, y, "o-", color=color, lw=1.8, ms=4, label=phase)
    if name != "top1" and _spans_decades([value for _, _, value in course]):
        axis.set_yscale("log")
    axis.set_title(_TITLES[name] if name == "loss" else f"{_TITLES[name]}, on held-out images")
    _plain_numbers(axis)


def _course(report: RunReport, name: str) -> list[tuple[float, str, float]]:
    """Steps, phases and values of one figure of the history, where it was recorded."""
    steps = _running_steps([_number(row, "step") for row in report.history])
    rows = zip(steps, report.history, strict=True)
    found = ((step, str(row.get("phase", "")), _number(row, name)) for step, row in rows)
    return [(step, phase, value) for step, phase, value in found if value is not None]


def _running_steps(recorded: Sequence[float | None]) -> list[float]:
    """Steps that go on through the phases, even where each phase counts from its own start."""
    steps: list[float] = []
    offset = 0.0
    for place, step in enumerate(recorded):
        at = offset + (place if step is None else step)
        if steps and at < steps[-1]:
            offset += steps[-1] - at
            at = steps[-1]
        steps.append(at)
    return steps


def _phases(report: RunReport) -> list[str]:
    return list(dict.fromkeys(str(row.get("phase", "")) for row in report.history))


def _legend(drawn: Any, columns: int, **options: Any) -> None:
    handles, labels = drawn.axes[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside upper left", ncols=columns, **options)


def _plain_numbers(axis: Any) -> None:
    """Ticks as a person writes them, on logarithmic axes too."""
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _smoothed(values: Sequence[float]) -> list[float]:
    """Mean of each value's neighbourhood, a twentieth of the curve to both sides together."""
    sums = [0.0, *accumulate(values)]
    reach = max(1, len(values) // 40)
    bounds = [(max(0, place - reach), min(len(values), place + reach + 1)) for place in range(len(values))]
    return [(sums[end] - sums[begin]) / (end - begin) for begin, end in bounds]


def _spans_decades(values: Sequence[float]) -> bool:
    return len(values) > 1 and min(values) >= 0 and max(values) > 30 * min((v for v in values if v > 0), default=1e30)


def _titles(names: Sequence[str]) -> str:
    return " and ".join(_TITLES[name] for name in names)


def _number(row: Mapping[str, float | int | str | None], name: str) -> float | None:
    value = row.get(name)
    return value if isinstance(value, float | int) else None
