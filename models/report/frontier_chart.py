"""Draws a search's frontier, closeness to the dense model against milliseconds, a panel for each batch size.

Upwards is KL to the dense model, by which the search chooses, so that the Pareto frontier only rises. The axis has its
square root: a logarithm would have no place for the dense model, whose KL is 0. The server's page draws the same.
"""

from math import sqrt
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from .drawing import INK, MUTED, PAGE, PAPER, PICTURE, SERIES, add_tooltip, figure, save_picture, style, to_svg
from .frontier import Frontier, FrontierModel, pareto_frontier
from .terms import counted, percent, points, size, three_digits

TITLE_WIDTH = 92
"""Letters of the title's line in a picture."""
LABEL_PX = 95
"""Room for the chosen model's name on the left of its dot; a dot that is nearer to the axis has it on its right."""
TICKS = (0.0, *(digit * 10.0**power for power in range(-5, 2) for digit in (1, 2, 5)))
"""KL that may be written at the axis."""
TICK_GAP = 1 / 7
"""No two ticks stand nearer to each other than this share of the axis."""

_LABEL: dict[str, Any] = {"textcoords": "offset points", "fontsize": 11, "zorder": 6}


def plot_frontier(frontier: Frontier, out: Path) -> Path:
    """Write the frontier as one picture; SVG or PNG, as the name ends.

    Raises:
        ValueError: the name is of no picture.
        ImportError: matplotlib is not installed.
    """
    return save_picture(lambda: draw_frontier(frontier), out)


def draw_frontier(frontier: Frontier) -> Any:
    """The figure of `plot_frontier`: a panel for each batch size, and the name of the chosen model above."""
    chosen = frontier.chosen
    same = f"top-1 agreement {percent(chosen.quality.agreement.value)}"
    title = fill(f"Chosen: {chosen.name} ({chosen.computed_by}), {same}", TITLE_WIDTH)
    drawn = figure(PICTURE, 30 + 18 * title.count("\n") + 300 * len(frontier.batches))
    drawn.suptitle(title, x=0.01, ha="left", fontsize=12)
    panels = drawn.subplots(len(frontier.batches), 1, squeeze=False)[:, 0]
    for axis, batch in zip(panels, frontier.batches, strict=True):
        draw_batch(axis, frontier, batch)
    return drawn


def frontier_charts(frontier: Frontier) -> list[str]:
    """The panels as SVG for a page."""
    pictures = []
    for batch in frontier.batches:
        with style(f"frontier {batch}"):
            drawn = figure(PAGE, 290)
            axis = drawn.subplots()
            draw_batch(axis, frontier, batch)
            pictures.append(to_svg(drawn, f"{axis.get_title()}, against {axis.get_xlabel()}"))
    return pictures


def draw_batch(axis: Any, frontier: Frontier, batch: int, chosen: str = "chosen") -> None:
    """Draw every model with its interval, join those of the Pareto frontier, and name the dense and the chosen one.

    Args:
        chosen: what the chosen one is called.
    """
    ahead = pareto_frontier(frontier.models, batch)
    line = [(model.ms[batch], model.quality.kl.value) for model in ahead]
    axis.plot(*zip(*line, strict=True), color=SERIES[0], lw=1.6, zorder=2, label="Pareto frontier")
    axis.plot([], [], "|", ms=12, color=SERIES[0], alpha=0.55, label="95 %")
    for model in frontier.models:
        _draw_model(axis, model, batch, model in ahead)
    dense = frontier.dense.ms[batch]
    axis.plot(dense, 0, "D", ms=7, color=INK, mec=PAPER, mew=1, zorder=5)
    axis.annotate(f"dense\n{three_digits(dense)} ms", (dense, 0), (4, 8), ha="right", va="bottom", **_LABEL)
    axis.set_xlim(0, 1.06 * max(dense, *(model.ms[batch] for model in frontier.models)))
    _make_room(axis, frontier)
    _name_chosen(axis, frontier, batch, chosen)
    axis.set_title(f"KL to the dense model on {counted(frontier.images, 'image')}: up is closer")
    axis.set_xlabel(f"latency, ms/image, batch {batch}")
    handles, labels = axis.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    axis.legend(once.values(), once.keys(), loc="lower right")


def tried_text(model: FrontierModel, batch: int) -> str:
    """One model in a line."""
    quality = model.quality
    parts = [f"{model.name} ({model.computed_by}): {three_digits(model.ms[batch])} ms", f"{model.speedup:.2f}×"]
    parts += [f"top-1 agreement {percent(quality.agreement.value)}", f"KL {three_digits(quality.kl.value)}"]
    if quality.top1 is not None:
        parts.append(f"top-1 {points(quality.top1.value)}")
    return ", ".join([*parts, size(model.bytes)])


def _draw_model(axis: Any, model: FrontierModel, batch: int, ahead: bool) -> None:
    """Draw a dot and the bar of its interval, faint where the model is not on the Pareto frontier."""
    kl, ms = model.quality.kl, model.ms[batch]
    if model.chosen:
        look = {"ms": 11, "color": SERIES[1], "mec": PAPER, "mew": 2, "zorder": 5}
    elif ahead:
        look = {"ms": 7, "color": SERIES[0], "zorder": 4}
    else:
        look = {"ms": 5, "color": MUTED, "alpha": 0.55, "zorder": 3, "label": "tried"}
    bar = {"lw": 2.0 if model.chosen else 1.2, "alpha": 0.9 if model.chosen else 0.55 if ahead else 0.25}
    axis.vlines(ms, kl.low, kl.high, color=look["color"], zorder=1.5, **bar)
    (point,) = axis.plot(ms, kl.value, "o", **look)
    add_tooltip(point, tried_text(model, batch))


def _make_room(axis: Any, frontier: Frontier) -> None:
    """Show all bars, and leave room above 0 for names; no tick stands there."""
    high = max(1e-5, *(model.quality.kl.high for model in frontier.models))
    axis.set_yscale("function", functions=(_root, _square))
    axis.set_ylim(1.1 * high, -0.05 * high)
    axis.set_yticks(ticks(high))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.minorticks_off()


def ticks(high: float) -> list[float]:
    """KL to write at an axis from 0 to `high`, as many as have room."""
    gap, chosen = TICK_GAP * sqrt(high), [0.0]
    for tick in reversed([tick for tick in TICKS if 0 < tick <= high]):
        above = sqrt(chosen[-1]) if len(chosen) > 1 else 2 * sqrt(high)
        if gap <= sqrt(tick) <= above - gap:
            chosen.append(tick)
    return sorted(chosen)


def _root(kl: Any) -> Any:
    """The axis' scale; also below 0, where names have room."""
    return np.sign(kl) * np.sqrt(np.abs(kl))


def _square(root: Any) -> Any:
    return np.sign(root) * np.square(root)


def _name_chosen(axis: Any, frontier: Frontier, batch: int, name: str) -> None:
    """Name the chosen model above its bar, to the left, where no model of the frontier can be; or right of its dot."""
    chosen, kl = frontier.chosen, frontier.chosen.quality.kl
    ms, room = chosen.ms[batch], LABEL_PX / axis.figure.bbox.width * axis.get_xlim()[1]
    text = f"{name}\n{three_digits(ms)} ms, {frontier.dense.ms[batch] / ms:.1f}×"
    if ms > room:
        axis.annotate(text, (ms, kl.low), (4, 4), ha="right", va="bottom", color=SERIES[1], **_LABEL)
    else:
        axis.annotate(text, (ms, kl.value), (12, -2), ha="left", va="top", color=SERIES[1], **_LABEL)
