"""Fills README.md's picture and table of compressed models: `python -m milkweed.bench.tables.frontier`, a second.

Their figures are those of `bench/results/frontier.json`, which `python -m milkweed.bench.frontier` measures: one dense
model, what was made of it here, and what other tools make of it, all in one run.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from ...models.report.drawing import INK, MUTED, PICTURE, SERIES, figure, save_picture
from ...models.report.frontier import DenseTime, Frontier, Quality, Tried
from ...models.report.frontier_chart import draw_batch
from ...models.report.terms import MISSING, counted, percent, points, size, three_digits
from ..labels import label_ends

DOCUMENT, README = Path("bench/results/frontier.json"), Path("README.md")
PICTURE_FILE = Path("bench/results/frontier_readme.svg")
OURS = "milkweed"
"""The source of our rows begins with this."""
SHOWN = 75.0
"""Percent of the answers that have to be the dense model's for a place in the picture and the table."""
WIDTH = 132
"""Letters of a line of README.md."""
HEADING = ("", "ms an image: alone, in eights", "times as fast", "top-1", "as dense", "KL", "size")

Document = Mapping[str, Any]
Row = Mapping[str, Any]


def filled(readme: str, document: Document) -> str:
    """README's text with the picture and the table of this document, each between its two comments.

    Raises:
        ValueError: the document is unfinished or has no row of ours, or README has not the comments.
    """
    if not document["finished"]:
        raise ValueError("the run that made it has not finished: give its command again")
    shown = rows(document)
    for name, text in (("picture", _picture_lines(document, shown)), ("table", _table_lines(document, shown))):
        block = re.compile(rf"(<!-- frontier: {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        readme, count = block.subn(lambda found, text=text: f"{found[1]}{text}{found[2]}", readme)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"README has to have <!-- frontier: {name} --> and <!-- end of {name} --> once")
    return readme


def rows(document: Document) -> list[Row]:
    """The dense model that all are timed against, then every model in the backend that it is fastest in, dense too.

    Raises:
        ValueError: none of ours was measured.
    """
    dense, *others = (row for row in document["rows"] if "missing" not in row)
    fastest: dict[tuple[str, str], Row] = {}
    for row in sorted(others, key=lambda row: sum(row["ms"].values())):
        if row["quality"]["agreement"]["value"] >= SHOWN:
            fastest.setdefault((row["name"], row["source"]), row)
    if not any(map(_is_ours, fastest.values())):
        raise ValueError("no model of ours was measured that answers as its dense model does")
    return [dense, *fastest.values()]


def draw(document: Document, out: Path) -> Path:
    """Write the picture: one image at a time, every model named."""
    return save_picture(lambda: _figure(document), out)


def _figure(document: Document) -> Any:
    dense, *shown = rows(document)
    frontier = _frontier(dense, shown)
    batch = frontier.batches[0]
    drawn = figure(PICTURE, 360)
    axis = drawn.subplots()
    draw_batch(axis, frontier, batch)
    for text in axis.texts:
        text.set_text(text.get_text().replace("chosen", OURS, 1))
    axis.set_xlim(0, 1.15 * axis.get_xlim()[1])
    named = [row for row, model in zip(shown, frontier.models, strict=True) if not model.chosen]
    place = [(row["ms"][str(batch)], row["quality"]["kl"]["value"]) for row in named]
    look = [SERIES[0] if _is_ours(row) else MUTED for row in named]
    texts = [f"dense, {row['computed_by']}" if row["name"] == dense["name"] else row["name"] for row in named]
    label_ends(axis, [(*at, text, colour) for at, text, colour in zip(place, texts, look, strict=True)])
    axis.set_title(f"{document['model']['arch']} dense, compressed here, and by other tools", color=INK)
    axis.set_ylabel("KL to dense: up is closer")
    axis.get_legend().remove()
    return drawn


def _frontier(dense: Row, shown: Sequence[Row]) -> Frontier:
    """The rows as a search's record; the first of ours is the chosen one."""
    ours = next(row for row in shown if _is_ours(row))
    models = [
        Tried(
            name=row["name"],
            computed_by=row["computed_by"],
            ms=_by_batch(row),
            speedup=min(row["times_dense"].values()),
            bytes=row["bytes"],
            quality=Quality.from_dict(row["quality"]),
            on_front=False,  # the picture finds it out for each batch size
            chosen=row is ours,
        )
        for row in shown
    ]
    images = dense["quality"]["images"]
    return Frontier(
        models=tuple(models), dense=DenseTime(computed_by=dense["computed_by"], ms=_by_batch(dense)), images=images
    )


def _picture_lines(document: Document, shown: Sequence[Row]) -> str:
    ours = next(row for row in shown if _is_ours(row))
    times, found = ours["times_dense"], Quality.from_dict(ours["quality"])
    said = (
        f"{document['model']['arch']}, compressed here: {min(times.values()):.1f} times as fast, "
        f"{percent(found.agreement.value)} the same answers"
    )
    return f"![{said}]({PICTURE_FILE.as_posix()})\n"


def _table_lines(document: Document, shown: Sequence[Row]) -> str:
    lines = [_line(HEADING), _line(["---"] * len(HEADING)), *(_line(_cells(row)) for row in shown)]
    return "\n".join([*lines, "", fill(_origin(document, shown[0]), WIDTH), ""])


def _cells(row: Row) -> list[str]:
    found = Quality.from_dict(row["quality"])
    name = f"{row['name']}, {row['computed_by']}"
    top1 = MISSING
    if found.top1 is not None and found.top1_of_dense is not None:
        top1 = percent(found.top1_of_dense + found.top1.value)
        if found.agreement.value < 100:
            top1 += f" ({points(found.top1.value)} [{points(found.top1.low)}, {points(found.top1.high)}])"
    return [
        f"**{name}**" if _is_ours(row) else name,
        ", ".join(f"{ms:.1f}" for ms in row["ms"].values()),
        ", ".join(f"{times:.2f}" for times in row["times_dense"].values()),
        top1,
        percent(found.agreement.value),
        three_digits(found.kl.value) if found.kl.value else "0",
        size(row["bytes"]),
    ]


def _origin(document: Document, dense: Row) -> str:
    """What the figures are of."""
    photographs, machine = document["photographs"], document["machine"]
    return (
        f"{document['model']['arch']} on {machine['processor']}, {counted(machine['cores'], 'core')}: "
        f"{counted(photographs['judged'], 'photograph')} that fitted nothing, {photographs['fitted']} others that "
        f"calibrated; [95 %]. Times in turns with the dense model, {dense['computed_by']}; every model in the backend "
        f"that it is fastest in. Bold ones were made by `milkweed compress` (`{DOCUMENT.as_posix()}`)."
    )


def _is_ours(row: Row) -> bool:
    return str(row["source"]).startswith(OURS)


def _by_batch(row: Row) -> dict[int, float]:
    return {int(batch): ms for batch, ms in row["ms"].items()}


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m milkweed.bench.tables.frontier", description=__doc__)
    parser.add_argument("--document", type=Path, default=DOCUMENT, help=f"default: {DOCUMENT}")
    parser.add_argument("--readme", type=Path, default=README, help=f"default: {README}")
    parser.add_argument("--picture", type=Path, default=PICTURE_FILE, help=f"default: {PICTURE_FILE}")
    given = parser.parse_args(arguments)
    try:
        document = json.loads(given.document.read_text())
        text = filled(given.readme.read_text(), document)
        draw(document, given.picture)
    except (OSError, ValueError) as error:
        print(f"frontier: {given.document}: {error}; {given.readme} stays as it is", file=sys.stderr)
        return 1
    given.readme.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
