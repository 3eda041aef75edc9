"""Images a second by way of decoding, and of our loaders by batch, of one document of `bench decode`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..models.report.drawing import PICTURE, figure, save_picture
from ..models.report.terms import counted
from .labels import label_ends

OURS, OTHERS = PICTURE.palette.accent, PICTURE.palette.muted


def plot(document: Mapping[str, Any], out: Path) -> Path:
    """Write the picture; the format is the name's.

    Raises:
        ValueError: neither `one` nor `batches` was measured, or the name is of no picture.
        ImportError: matplotlib is not installed.
    """
    return save_picture(lambda: draw(document), out)


def draw(document: Mapping[str, Any]) -> Any:
    """The figure; raises ValueError where there is nothing to draw."""
    rows, batches = document.get("rows") or [], document.get("batches") or []
    panels = [70 + 30 * len(rows)] * bool(rows) + [280] * bool(batches)
    if not panels:
        raise ValueError("only the sections one and batches are drawn, and neither was measured")
    drawn = figure(PICTURE, sum(panels))
    # Figures of their own: long names on the one shall not push the other aside.
    parts = iter(drawn.subfigures(len(panels), 1, height_ratios=panels, squeeze=False)[:, 0])
    if rows:
        _methods(next(parts).subplots(), rows)
    if batches:
        _batches(next(parts).subplots(), batches)
    return drawn


def _methods(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    rows = sorted(rows, key=lambda row: float(row["images_per_second"]))
    rates = [row["images_per_second"] for row in rows]
    bars = axis.barh(range(len(rows)), rates, color=[OURS if "(ours)" in row["method"] else OTHERS for row in rows])
    axis.bar_label(bars, fmt="{:,.0f}", padding=4, fontsize=11)
    axis.set_yticks(range(len(rows)), [row["method"] for row in rows])
    axis.grid(axis="y", visible=False)
    axis.margins(x=0.12)
    axis.set_xlabel("images a second")
    axis.set_title("JPEG to model input, one image after the other, 1 thread")


def _batches(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    lines: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for row in rows:
        lines.setdefault((row["loader"], row["threads"]), []).append((row["batch"], row["images_per_second"]))
    loaders = list(dict.fromkeys(loader for loader, _ in lines))
    colours = dict(zip(loaders, PICTURE.palette.series * len(loaders), strict=False))
    for (loader, threads), places in lines.items():
        axis.plot(*zip(*places, strict=True), "-" if threads == 1 else "--", marker="o", ms=5, color=colours[loader])
    sizes = sorted({row["batch"] for row in rows})
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [f"{size}" for size in sizes])
    axis.minorticks_off()
    axis.set_ylim(0, None)
    axis.set_xlabel("images of a batch")
    axis.set_ylabel("images a second")
    axis.set_title("Our loaders on batches")
    names = [
        (*places[-1], f"{loader}, {counted(threads, 'thread')}", colours[loader])
        for (loader, threads), places in lines.items()
    ]
    label_ends(axis, names)
