"""Shows what was measured: a table for a person, and the picture of the frontier with the rivals in it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...cli.output import print_table
from ...models.report.drawing import MUTED, PICTURE, SERIES, figure, save_picture
from ...models.report.frontier import ConfidenceInterval, Frontier, Quality
from ...models.report.frontier_chart import draw_batch
from ...models.report.terms import optional, points
from ..labels import Label, label_ends

Row = Mapping[str, Any]

OURS = "milkweed"
"""The source of our rows begins with this."""
SHOWN = 75.0
"""Percent of the answers that have to be the dense model's for a place in the picture and in README's table."""
PANEL_PX = 330


def print_document(document: Mapping[str, Any]) -> None:
    """Print the rows."""
    measured = [row for row in document["rows"] if "missing" not in row]
    batches = list(document["rows"][0]["ms"])
    photographs = document["photographs"]
    print(
        f"{document['machine']['processor']}, {document['plan']}; {photographs['judged']} held-out "
        f"photographs; dense top-1 {optional(measured[0]['quality']['top1_of_dense'])} %; ms/image and "
        f"speedup over dense at batch {' and '.join(batches)}; changes from dense [95 %]"
    )
    times = [f" {what} at {batch}" for what in ("ms", "times") for batch in batches]
    print_table(
        ("model", "source", "computed by", *times, " top-1", " KL", " same answer", " MB"),
        [_cells(row, batches) for row in sorted(measured, key=lambda row: -row["times_dense"][batches[0]])],
    )
    for row in document["rows"]:
        if "missing" in row:
            print(f"{row['name']} ({row['asked']}): not measured: {row['missing']}")


def _cells(row: Mapping[str, Any], batches: Sequence[str]) -> tuple[str, ...]:
    quality = Quality.from_dict(row["quality"])
    return (
        row["name"],
        row["source"],
        row["computed_by"],
        *(f"{row['ms'][batch]:.2f}" for batch in batches),
        *(f"{row['times_dense'][batch]:.2f}" for batch in batches),
        "" if quality.top1 is None else _change(quality.top1),
        f"{quality.kl.value:.4f} [{quality.kl.low:.4f}, {quality.kl.high:.4f}]",
        f"{quality.agreement.value:.1f} %",
        f"{row['bytes'] / 1e6:.2f}",
    )


def _change(interval: ConfidenceInterval) -> str:
    return f"{points(interval.value)} [{points(interval.low)}, {points(interval.high)}]"


def shown_rows(document: Mapping[str, Any]) -> list[Row]:
    """The dense model that all are timed against, then every model in the backend that it is fastest in, dense too.

    Raises:
        ValueError: none of ours was measured that mostly answers as the dense model does.
    """
    dense, *others = (row for row in document["rows"] if "missing" not in row)
    fastest: dict[tuple[str, str], Row] = {}
    for row in sorted(others, key=lambda row: sum(row["ms"].values())):
        if row["quality"]["agreement"]["value"] >= SHOWN:
            fastest.setdefault((row["name"], row["source"]), row)
    if not any(map(is_ours, fastest.values())):
        raise ValueError("no bundle of ours was measured that answers as its dense model does")
    return [dense, *fastest.values()]


def first_of_ours(document: Mapping[str, Any]) -> Row:
    """The first bundle that the command named, of those that are shown."""
    shown = shown_rows(document)
    return next(row for row in document["rows"] if is_ours(row) and row in shown)


def is_ours(row: Row) -> bool:
    return str(row["source"]).startswith(OURS)


def draw(document: Mapping[str, Any], path: Path) -> Path:
    """Write the picture: a panel for each batch size, every model named.

    Raises:
        ValueError: as `shown_rows`.
    """
    return save_picture(lambda: _figure(document), path)


def _figure(document: Mapping[str, Any]) -> Any:
    dense, *shown = shown_rows(document)
    ours = first_of_ours(document)
    frontier = _frontier(dense, shown, ours)
    drawn = figure(PICTURE, PANEL_PX * len(frontier.batches))
    drawn.suptitle(f"{document['model']['arch']} dense, compressed here, and by other tools", x=0.01, ha="left")
    panels = drawn.subplots(len(frontier.batches), 1, squeeze=False)[:, 0]
    for axis, batch in zip(panels, frontier.batches, strict=True):
        draw_batch(axis, frontier, batch, OURS)
        axis.set_xlim(0, 1.15 * axis.get_xlim()[1])
        axis.get_legend().remove()
        label_ends(axis, [_label(row, dense, batch) for row in shown if not is_ours(row)])
        for row in (row for row in shown if is_ours(row) and row is not ours):  # on the left, where nothing is
            x, y, text, color = _label(row, dense, batch)
            axis.annotate(text, (x, y), (-8, -4), textcoords="offset points", ha="right", fontsize=11, color=color)
    return drawn


def _label(row: Row, dense: Row, batch: int) -> Label:
    """The name of a row at its place."""
    text = f"dense, {row['computed_by']}" if row["name"] == dense["name"] else row["name"]
    return row["ms"][str(batch)], row["quality"]["kl"]["value"], text, SERIES[0] if is_ours(row) else MUTED


def _frontier(dense: Row, shown: Sequence[Row], ours: Row) -> Frontier:
    """The rows as a search's record, ours the chosen one."""
    models = [
        {name: row[name] for name in ("name", "computed_by", "ms", "bytes", "quality")}
        | {"speedup": min(row["times_dense"].values()), "on_front": False, "chosen": row is ours}
        for row in shown
    ]
    base = {name: dense[name] for name in ("computed_by", "ms")}
    return Frontier.from_dict({"models": models, "dense": base, "images": dense["quality"]["images"]})
