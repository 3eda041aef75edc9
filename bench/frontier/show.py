"""Shows what was measured: a table for a person, and the picture of the frontier with the rivals in it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...cli.output import print_table
from ...models.report.drawing import PICTURE, figure, save_picture
from ...models.report.frontier import Frontier, Interval, Quality
from ...models.report.frontier_chart import draw_batch
from ...models.report.terms import optional, points

SHOWN = 75.0
"""Percent of the answers that have to be the dense model's for a place in the picture."""

PANEL_PX, LINE_PX = 300, 15


def print_document(document: Mapping[str, Any]) -> None:
    """Print the measured rows, and what papers publish."""
    measured = [row for row in document["rows"] if "missing" not in row]
    batches = list(document["rows"][0]["ms"])
    photographs = document["photographs"]
    print(
        f"{document['machine']['processor']}, {document['plan']}; {photographs['judged']} photographs that fitted "
        f"nothing; dense top-1 {optional(measured[0]['quality']['top1_of_dense'])} %; ms an image and "
        f"times as fast as dense at {' and '.join(batches)} images at a time; changes from dense [95 %]"
    )
    times = [f" {what} at {batch}" for what in ("ms", "times") for batch in batches]
    print_table(
        ("model", "source", "computed by", *times, " top-1", " KL", " same answer", " MB"),
        [_cells(row, batches) for row in sorted(measured, key=lambda row: -row["times_dense"][batches[0]])],
    )
    for row in document["rows"]:
        if "missing" in row:
            print(f"{row['name']} ({row['asked']}): not measured: {row['missing']}")
    print("\nPublished, on 50,000 other images: changes from dense")
    print_table(
        ("method", "model", "gain", "data", " top-1", "source"),
        [
            (*map(row.get, ("method", "model", "gain", "data")), points(row["change"]), row["source"])
            for row in document["published"]
        ],
    )


def _cells(row: Mapping[str, Any], batches: Sequence[str]) -> tuple[str, ...]:
    found = Quality.from_dict(row["quality"])
    return (
        row["name"],
        row["source"],
        row["computed_by"],
        *(f"{row['ms'][batch]:.2f}" for batch in batches),
        *(f"{row['times_dense'][batch]:.2f}" for batch in batches),
        "" if found.top1 is None else _change(found.top1),
        f"{found.kl.value:.4f} [{found.kl.low:.4f}, {found.kl.high:.4f}]",
        f"{found.agreement.value:.1f} %",
        f"{row['bytes'] / 1e6:.2f}",
    )


def _change(found: Interval) -> str:
    return f"{points(found.value)} [{points(found.low)}, {points(found.high)}]"


def draw(document: Mapping[str, Any], path: Path) -> Path:
    """Write the picture: every model in the backend that it is fastest in, by number; the first of ours is `chosen`.

    Raises:
        ValueError: none of ours was measured.
    """
    return save_picture(lambda: _figure(document), path)


def _figure(document: Mapping[str, Any]) -> Any:
    frontier = _frontier(document)
    numbered = [model for model in frontier.models if not model.chosen]
    lines = [f"{number}  {model.name} ({model.computed_by})" for number, model in enumerate(numbered, 1)]
    drawn = figure(PICTURE, PANEL_PX * len(frontier.batches) + LINE_PX * (len(lines) + 2))
    drawn.suptitle(f"Chosen: {frontier.chosen.name} ({frontier.chosen.computed_by})", x=0.01, ha="left", fontsize=12)
    drawn.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=10)
    panels = drawn.subplots(len(frontier.batches), 1, squeeze=False)[:, 0]
    for axis, batch in zip(panels, frontier.batches, strict=True):
        draw_batch(axis, frontier, batch)
        for number, model in enumerate(numbered, 1):
            place = (model.ms[batch], model.quality.kl.value)
            axis.annotate(str(number), place, (5, 4), textcoords="offset points", fontsize=9, zorder=6)
    return drawn


def _frontier(document: Mapping[str, Any]) -> Frontier:
    """The fastest row of every model that mostly answers as the dense one does, and the first of ours in any case."""
    base, *others = (row for row in document["rows"] if "missing" not in row)
    ours = next((row for row in others if row["source"].startswith("milkweed")), None)
    if ours is None:
        raise ValueError("no picture: no bundle of ours was measured")
    fastest: dict[str, Mapping[str, Any]] = {}
    for row in sorted(others, key=lambda row: -sum(row["ms"].values())):  # the fastest one last
        if row is ours or row["quality"]["agreement"]["value"] >= SHOWN:
            fastest.pop(key := f"{row['name']}, {row['source']}", None)
            fastest[key] = row
    models = [
        {name: row[name] for name in ("name", "computed_by", "ms", "bytes", "quality")}
        | {"speedup": min(row["times_dense"].values()), "on_front": False, "chosen": row is ours}
        for row in reversed(fastest.values())
    ]
    dense = {name: base[name] for name in ("computed_by", "ms")}
    return Frontier.from_dict({"models": models, "dense": dense, "images": document["photographs"]["judged"]})
