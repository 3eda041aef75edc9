"""Accuracy against size, of one document of `bench.compression`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..models.report.drawing import PICTURE, figure, save_picture
from .labels import label_ends

KINDS = {
    "calibrated": PICTURE.palette.series[0],
    "recovered": PICTURE.palette.series[1],
    "plain projection": PICTURE.palette.muted,
}
"""How a row was made, by its options; and its colour."""


def plot(document: Mapping[str, Any], out: Path) -> Path:
    """Write the picture; the format is the name's.

    Raises:
        ValueError: no row, or the name is of no picture.
        ImportError: matplotlib is not installed.
    """
    return save_picture(lambda: draw(document), out)


def kind_of(options: str) -> str:
    """What a row's options say of how it was made."""
    words = options.split()
    return "recovered" if "--recover" in words else "calibrated" if "--calibration" in words else "plain projection"


def _short(name: str) -> str:
    """A row's name without what its colour says."""
    return name.removesuffix("-recovered").removeprefix("plain-")


def draw(document: Mapping[str, Any]) -> Any:
    """The figure; raises ValueError where no row was measured."""
    rows = document["rows"]
    if not rows:
        raise ValueError("no row was measured: there is nothing to draw")
    drawn = figure(PICTURE, 460)
    axis = drawn.subplots()
    labels = []
    for kind, color in KINDS.items():
        mine = [row for row in rows if kind_of(row["options"]) == kind]
        shares, tops = [100 * row["share"] for row in mine], [row["top1"] for row in mine]
        if mine:
            axis.plot(shares, tops, "o", ms=8, color=color, label=kind)
        labels += [(share, top, _short(row["row"]), color) for row, share, top in zip(mine, shares, tops, strict=True)]
    dense = document["dense_top1"]
    if dense is not None:
        axis.axhline(dense, color=PICTURE.palette.ink, lw=1, ls=(0, (4, 3)))
        axis.annotate(
            f"dense {dense:.1f} %", (0.01, dense), (0, 3), ("axes fraction", "data"), textcoords="offset points"
        )
    axis.set_xlim(0, 100)
    axis.set_ylim(0, 100)
    axis.set_xlabel("weights kept of the chosen layers, %")
    axis.set_ylabel(f"top-1 of {rows[0]['images']} images, %")
    axis.set_title(f"{document['arch']} compressed")
    axis.legend(loc="lower left")
    label_ends(axis, labels)
    return drawn
