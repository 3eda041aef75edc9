"""Labels and ticks of the bench's plots: names at the ends of lines, plain numbers on logarithmic axes."""

from collections.abc import Sequence
from typing import Any

Label = tuple[float, float, str, str]  # A place in the axis's figures, a text and a colour
_POINTS_PER_INCH = 72
_LABEL_PT, _BESIDE_PT = 11, 7
_LETTER, _LINE = 0.6, 1.2  # width of a letter, roughly, and distance of two lines, in heights of the letters


def label_ends(axis: Any, labels: Sequence[Label]) -> None:
    """Names to the right of their points, in their colours, moved up where they would lie on each other or on a point.

    The axis has its scales, limits and data by now.
    """
    drawn = axis.figure.canvas.figure  # the whole one
    drawn.draw_without_rendering()  # lays out: places in pixels are known from here on
    scale = drawn.dpi / _POINTS_PER_INCH
    places = [axis.transData.transform(label[:2]) for label in labels]
    # Left, right and height of what has its place already.
    spans = [(x - _BESIDE_PT * scale, x + _BESIDE_PT * scale, y) for x, y in places]
    for (left, height), (x, y, text, color) in sorted(zip(places, labels, strict=True), key=lambda pair: pair[0][1]):
        begin, free = left + _BESIDE_PT * scale, height
        end = begin + _LETTER * _LABEL_PT * len(text) * scale
        line = _LINE * _LABEL_PT * scale
        near = 0.99 * line  # a whole line away is free, whatever the last bit says
        while hit := [place for low, high, place in spans if low < end and begin < high and abs(place - free) < near]:
            free = max(hit) + line
        spans.append((begin, end, free))
        axis.annotate(
            text,
            (x, y),
            (_BESIDE_PT, (free - height) / scale),
            textcoords="offset points",
            color=color,
            va="center",
            fontsize=_LABEL_PT,
        )


def plain_log(axis: Any) -> None:
    """Ticks of a logarithmic axis (`axes.xaxis`) at 1, 2 and 5 times a power of ten, as a person writes them."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,g}")
