"""The picture of the study of compression: accuracy against size."""

from typing import Any

from ...models.report.drawing import INK, MUTED, PICTURE, figure
from ..labels import label_ends
from ..plots import BLUE, DASHED, RED, Document, Plot


@Plot
def compression(document: Document) -> Any:
    """`bench.studies.compression`: accuracy against size."""
    if not document["rows"]:
        raise ValueError("no row was measured: there is nothing to draw")
    axis, labels = figure(PICTURE, 460).subplots(), []
    for kind, colour in {"calibrated": BLUE, "recovered": RED, "plain projection": MUTED}.items():
        mine = [row for row in document["rows"] if _how_made(row["options"]) == kind]
        points = [(100 * row["share"], row["top1"]) for row in mine]
        if mine:
            axis.plot(*zip(*points, strict=True), "o", ms=8, color=colour, label=kind)
        short = [row["row"].removesuffix("-recovered").removeprefix("plain-") for row in mine]
        labels += [(*point, name, colour) for point, name in zip(points, short, strict=True)]
    dense = document["dense_top1"]
    if dense is not None:
        axis.axhline(dense, color=INK, lw=1, ls=DASHED)
        where = ("axes fraction", "data")
        axis.annotate(f"dense {dense:.1f} %", (0.01, dense), (0, 3), where, textcoords="offset points")
    axis.set(xlim=(0, 100), ylim=(0, 100), xlabel="weights kept of the chosen layers, %")
    axis.set_ylabel(f"top-1 of {document['rows'][0]['images']} images, %")
    axis.set_title(f"{document['arch']} compressed")
    axis.legend(loc="lower left")
    label_ends(axis, labels)
    return axis.figure


def _how_made(options: str) -> str:
    words = options.split()
    return "recovered" if "--recover" in words else "calibrated" if "--calibration" in words else "plain projection"
