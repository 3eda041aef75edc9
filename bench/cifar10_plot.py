"""The plot of the CIFAR-10 experiment: what each model answers right, and the losses of those that were trained."""

from collections.abc import Mapping
from typing import Any

from ..models.report.drawing import PICTURE, figure, render

_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY = PICTURE.palette.series
COLOURS = {
    "dense": _BLUE,
    "monarch": _RED,
    "s2d": _GREEN,
    "d2s": "#999999",
    "d2s_aware": _ORANGE,
    "d2s_recovered": _PINK,
}
"""One a model, wherever it is shown."""


def plot(document: Mapping[str, Any]) -> bytes:
    """The document as SVG, the same bytes for the same document.

    Raises:
        ImportError: matplotlib is not installed.
    """
    return render(lambda: _draw(document), ".svg")


def _draw(document: Mapping[str, Any]) -> Any:
    drawn = figure(PICTURE, 560)
    drawn.suptitle(_title(document["plan"]), fontsize=12)
    above, below = drawn.subfigures(2, 1)
    _accuracies(above.subplots(), document)
    _losses(below.subplots(), document)
    return drawn


def _accuracies(axes: Any, document: Mapping[str, Any]) -> None:
    """A bar a model: the mean over seeds, its sampling error, and each seed as a dot where there are several."""
    lines = document["summary"]
    places = range(len(lines))
    axes.barh(
        places,
        [line["top1"] for line in lines],
        xerr=[line["sampling_error"] for line in lines],
        color=[COLOURS[line["name"]] for line in lines],
        height=0.62,
    )
    for place, line in zip(places, lines, strict=True):
        text = f"{line['top1']:.2f} % · {line['parameters'] / 1000:.0f} k parameters"
        inside = line["top1"] > 50
        axes.annotate(
            text,
            (line["top1"], place),
            xytext=(-8 if inside else 8, 0),
            textcoords="offset points",
            ha="right" if inside else "left",
            va="center",
        )
        if len(line["seeds"]) > 1:
            tops = [row["top1"] for row in document["rows"] if row["name"] == line["name"]]
            axes.plot(tops, [place] * len(tops), "k.", markersize=4)
    axes.set_yticks(places, [line["title"] for line in lines])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"top-1 on {document['rows'][0]['images']:,} test images, %")
    axes.grid(axis="y", visible=False)


def _losses(axes: Any, document: Mapping[str, Any]) -> None:
    """Training loss by epoch of the models that were trained from the start, of the first seed."""
    titles = {line["name"]: line["title"] for line in document["summary"]}
    first = document["rows"][0]["seed"]
    for row in document["rows"]:
        points = [(r["epoch"], r["loss"]) for r in row["history"] if r.get("phase") == "train" and "loss" in r]
        if row["seed"] == first and points:
            epochs, losses = zip(*points, strict=True)
            # S2D lies on the Monarch run that it begins with: dashed, so that both show.
            style = "--" if row["name"] == "s2d" else "-"
            colour, title = COLOURS[row["name"]], titles[row["name"]]
            axes.plot(epochs, losses, style, marker="o", markersize=3, color=colour, label=title)
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("training loss (label smoothing included)")
    if axes.lines:
        axes.legend()


def _title(plan: Mapping[str, Any]) -> str:
    seeds = plan["seeds"]
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean of {len(seeds)} seeds"
    how = f"{plan['epochs']} epochs, {which}"
    return f"CIFAR-10: a small ViTAE, its MLPs dense or Monarch (nblocks {plan['nblocks']}), {how}"
