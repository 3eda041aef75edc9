"""The pictures of the studies: accuracy against size, and the models of the CIFAR-10 experiment."""

from collections.abc import Mapping
from typing import Any

from ...models.report.drawing import INK, MUTED, PICTURE, figure
from ..labels import label_ends
from ..plots import BLUE, DASHED, GREEN, ORANGE, PINK, RED, Document, Plot


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


@Plot
def cifar10(document: Document) -> Any:
    """`bench.studies.cifar10`: what each model answers right, and the training losses of the first seed."""
    drawn, plan = figure(PICTURE, 560), document["plan"]
    seeds = f"mean of {len(plan['seeds'])} seeds" if len(plan["seeds"]) > 1 else f"seed {plan['seeds'][0]}"
    title = f"CIFAR-10: a small ViTAE, its MLPs dense or Monarch (nblocks {plan['nblocks']})"
    drawn.suptitle(f"{title}, {plan['epochs']} epochs, {seeds}", fontsize=12)
    above, below = drawn.subfigures(2, 1)
    names = ("dense", "monarch", "s2d", "d2s", "d2s_aware", "d2s_recovered")
    colours = dict(zip(names, (BLUE, RED, GREEN, "#999999", ORANGE, PINK), strict=True))
    _accuracies(above.subplots(), document, colours)
    _losses(below.subplots(), document, colours)
    return drawn


def _accuracies(axis: Any, document: Document, colours: Mapping[str, str]) -> None:
    """A bar a model: the mean over the seeds with its sampling error."""
    lines = document["summary"]
    tops, errors = [line["top1"] for line in lines], [line["sampling_error"] for line in lines]
    axis.barh(range(len(lines)), tops, xerr=errors, color=[colours[line["name"]] for line in lines], height=0.62)
    for place, line in enumerate(lines):
        inside = line["top1"] > 50
        text = f"{line['top1']:.2f} % · {line['parameters'] / 1000:.0f} k parameters"
        shift, side = ((-8, 0), "right") if inside else ((8, 0), "left")
        axis.annotate(text, (line["top1"], place), shift, textcoords="offset points", ha=side, va="center")
    axis.set_yticks(range(len(lines)), [line["title"] for line in lines])
    axis.invert_yaxis()
    axis.set(xlim=(0, 100), xlabel=f"top-1 on {document['rows'][0]['images']:,} test images, %")
    axis.grid(axis="y", visible=False)


def _losses(axis: Any, document: Document, colours: Mapping[str, str]) -> None:
    titles = {line["name"]: line["title"] for line in document["summary"]}
    for row in document["rows"]:
        points = [(r["epoch"], r["loss"]) for r in row["history"] if r.get("phase") == "train" and "loss" in r]
        if row["seed"] == document["rows"][0]["seed"] and points:
            style = "--" if row["name"] == "s2d" else "-"  # it begins as the Monarch run, and lies on it
            look = {"marker": "o", "ms": 3, "color": colours[row["name"]], "label": titles[row["name"]]}
            axis.plot(*zip(*points, strict=True), style, **look)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set(xlabel="epoch", ylabel="training loss (label smoothing included)")
    if axis.lines:
        axis.legend()
