"""Images a second against the batch, dense and structured, of one document of `bench model`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..models.report.drawing import PICTURE, figure, save_picture
from ..models.report.terms import counted
from .labels import label_ends

Course = tuple[list[int], list[float]]
"""Images of a batch, and images a second."""

DENSE, MONARCH = "dense", "monarch"
COLOURS = dict(zip((DENSE, MONARCH), PICTURE.palette.series, strict=False))
SHORT = {"float32": "fp32", "bfloat16": "bf16"}


def plot(document: Mapping[str, Any], out: Path) -> Path:
    """Write the picture; the format is the name's.

    Raises:
        ValueError: no forward was measured, or the name is of no picture.
        ImportError: matplotlib is not installed.
    """
    return save_picture(lambda: draw(document), out)


def courses(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[tuple[str, str], Course]]:
    """By model, then by side and number type: throughput from the medians of wall time."""
    found: dict[str, dict[tuple[str, str], Course]] = {}
    for row in sorted((row for row in rows if row["what"] == "forward"), key=lambda row: row["images"]):
        for side in (DENSE, MONARCH):
            batches, rates = found.setdefault(row["name"], {}).setdefault((side, row["dtype"]), ([], []))
            batches.append(row["images"])
            rates.append(1e3 * row["images"] / row[side]["wall_ms"])
    return found


def draw(document: Mapping[str, Any]) -> Any:
    """The figure: a panel for each model; raises ValueError where no forward was measured."""
    models = courses(document["rows"])
    if not models:
        raise ValueError("no forward was measured: there is nothing to draw")
    drawn = figure(PICTURE, 60 + 280 * len(models))
    axes = drawn.subplots(len(models), 1, squeeze=False)[:, 0]
    for axis, (name, lines) in zip(axes, models.items(), strict=True):
        for (side, dtype), (batches, rates) in lines.items():
            dash = "-" if dtype == "float32" else "--"
            axis.plot(batches, rates, dash, marker="o", ms=5, lw=1.8, color=COLOURS[side])
        axis.set_xscale("log", base=2)
        everywhere = sorted({batch for batches, _ in lines.values() for batch in batches})
        axis.set_xticks(everywhere, [f"{batch}" for batch in everywhere])
        axis.minorticks_off()
        axis.set_xlim(everywhere[0] / 1.2, everywhere[-1] * 1.2)
        axis.set_ylim(0, 1.1 * max(rate for _, rates in lines.values() for rate in rates))
        axis.set_title(name)
        axis.set_ylabel("images a second")
    axes[-1].set_xlabel("images of a batch")
    settings = document["settings"]
    drawn.suptitle(
        f"{document['machine']['processor']}, {counted(settings['threads'], 'thread')}", x=0.02, ha="left", fontsize=13
    )
    for axis, lines in zip(axes, models.values(), strict=True):
        names = [
            (
                batches[-1],
                rates[-1],
                f"{'Monarch' if side == MONARCH else side} {SHORT.get(dtype, dtype)}",
                COLOURS[side],
            )
            for (side, dtype), (batches, rates) in lines.items()
        ]
        label_ends(axis, names)
    return drawn
