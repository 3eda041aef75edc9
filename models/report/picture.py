"""A report's drawings as one picture in a file: quality against size, then error and sensitivity by layer."""

from pathlib import Path
from typing import Any

from .charts import block_ticks, layer_panel, layer_panels, size_panel
from .curve import measures
from .document import RunReport
from .drawing import PICTURE, figure, save_picture
from .layer_names import layer_parts


def plot_report(report: RunReport, out: Path) -> Path:
    """Write the picture; SVG or PNG, as the name ends.

    Raises:
        ValueError: the report has neither candidates nor errors, or the name is of no picture.
        ImportError: matplotlib is not installed.
    """
    return save_picture(lambda: draw_report(report), out)


def draw_report(report: RunReport) -> Any:
    """The figure; raises ValueError where there is nothing to draw."""
    sizes, layers = measures(report.curve), layer_panels(report.layers)
    if not sizes and not layers:
        raise ValueError("the report has no measured candidates and no errors of layers: there is nothing to draw")
    heights = [280] * len(sizes) + [230] * len(layers)
    drawn = figure(PICTURE, sum(heights))
    axes = list(drawn.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    for axis, name in zip(axes, sizes, strict=False):
        size_panel(axis, report, name, PICTURE.palette)
    if sizes:
        axes[0].legend(fontsize=11)
    for axis, name in zip(axes[len(sizes) :], layers, strict=True):
        layer_panel(axis, report.layers, name, PICTURE.palette)
        block_ticks(axis, report.layers, 12)
    if layers:
        _legend(axes[len(sizes)], report)
    return drawn


def _legend(axis: Any, report: RunReport) -> None:
    """Of the parts that have bars."""
    parts = layer_parts(report.layers)
    barred = {parts[row.name] for row in report.layers if row.error is not None or row.sensitivity is not None}
    handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    shown = {text: handle for text, handle in handles.items() if text in barred or text not in parts.values()}
    axis.legend(shown.values(), shown.keys(), fontsize=11, ncols=5, loc="upper left", handlelength=1)
    axis.set_ylim(0, 1.2 * axis.get_ylim()[1])
