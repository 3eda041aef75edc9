"""Fills README.md's picture and table of compressed models: `python -m milkweed.bench.frontier.readme`, a second.

Their figures are those of `bench/results/frontier.json`, which `python -m milkweed.bench.frontier` measures: one dense
model, what was made of it here, and what other tools make of it, all in one run.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from ...models.report.frontier import Quality
from ...models.report.terms import MISSING, counted, percent, points, size, three_digits
from .show import draw, first_of_ours, is_ours, shown_rows

DOCUMENT, README = Path("bench/results/frontier.json"), Path("README.md")
WIDTH = 132
"""Letters of a line of README.md."""
ROUNDING = 1e-6
"""A KL that is nearer to 0 is that of float32's rounding."""
LATENCY, SPEEDUPS = "latency, ms/image: batch 1, 8", ("speedup over {base}", "over {peer}")
HEADING = ("", LATENCY, *SPEEDUPS, "top-1", "top-1 agreement", "KL", "size")

Document = Mapping[str, Any]
Row = Mapping[str, Any]


def filled(readme: str, document: Document) -> str:
    """README's text with the picture and the table of this document, each between its two comments.

    Raises:
        ValueError: the document is unfinished or has no row of ours, or README has not the comments.
    """
    if not document["finished"]:
        raise ValueError("the run that made it has not finished: give its command again")
    shown = shown_rows(document)
    for name, text in (("picture", _picture_lines(document)), ("table", _table_lines(document, shown))):
        block = re.compile(rf"(<!-- frontier: {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        readme, count = block.subn(lambda match, text=text: f"{match[1]}{text}{match[2]}", readme)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"README has to have <!-- frontier: {name} --> and <!-- end of {name} --> once")
    return readme


def _picture_lines(document: Document) -> str:
    ours, (base, peer) = first_of_ours(document), _dense_rows(document)
    same = Quality.from_dict(ours["quality"]).agreement
    said = (
        f"{document['model']['arch']}, compressed here: "
        f"speedup {min(_speedups(ours, base)):.1f} over {_computed(base)}, "
        f"{min(_speedups(ours, peer)):.1f} over {_computed(peer)}; top-1 agreement {percent(same.value)} "
        f"[{same.low:.1f}, {same.high:.1f}]"
    )
    return f"![{said}]({DOCUMENT.with_suffix('.svg').as_posix()})\n"


def _table_lines(document: Document, shown: Sequence[Row]) -> str:
    base, peer = _dense_rows(document)
    heading = _line(HEADING).format(base=_computed(base), peer=_computed(peer))
    lines = [heading, _line(["---"] * len(HEADING)), *(_line(_cells(row, base, peer)) for row in shown)]
    return "\n".join([*lines, "", fill(_origin(document, shown[0]), WIDTH), ""])


def _dense_rows(document: Document) -> tuple[Row, Row]:
    """Return the dense model that all are timed against, and the fastest of the dense ones in bfloat16, if any."""
    dense = [row for row in document["rows"] if row["name"] == document["rows"][0]["name"] and "missing" not in row]
    peers = [row for row in dense if row["computed_by"].endswith("bfloat16")] or dense
    return dense[0], min(peers, key=lambda row: sum(row["ms"].values()))


def _computed(dense: Row) -> str:
    return f"dense {dense['computed_by']}"


def _speedups(row: Row, dense: Row) -> list[float]:
    """Return a row's speedups over a dense model, by batch size."""
    return [dense["ms"][batch] / ms for batch, ms in row["ms"].items()]


def _cells(row: Row, base: Row, peer: Row) -> list[str]:
    quality = Quality.from_dict(row["quality"])
    name = f"{row['name']}, {row['computed_by']}"
    top1 = MISSING
    if quality.top1 is not None and quality.top1_of_dense is not None:
        top1 = percent(quality.top1_of_dense + quality.top1.value)
        if quality.agreement.value < 100:
            top1 += f" ({points(quality.top1.value)} [{points(quality.top1.low)}, {points(quality.top1.high)}])"
    return [
        f"**{name}**" if is_ours(row) else name,
        ", ".join(f"{ms:.1f}" for ms in row["ms"].values()),
        *(", ".join(f"{times:.2f}" for times in _speedups(row, dense)) for dense in (base, peer)),
        top1,
        percent(quality.agreement.value),
        three_digits(quality.kl.value) if quality.kl.value > ROUNDING else "0",
        size(row["bytes"]),
    ]


def _origin(document: Document, dense: Row) -> str:
    """What the figures are of."""
    photographs, machine = document["photographs"], document["machine"]
    return (
        f"{document['model']['arch']} on {machine['processor']}, {counted(machine['cores'], 'core')}: "
        f"{counted(photographs['judged'], 'held-out photograph')}, {photographs['fitted']} others that "
        f"calibrated; [95 %]. Times in turns with the dense model, {dense['computed_by']}; every model in the backend "
        f"that it is fastest in. Bold ones were made by `milkweed compress` (`{DOCUMENT.as_posix()}`)."
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(record: Path = DOCUMENT, readme: Path = README) -> int:
    """Fill README from a record of the frontier; returns the exit status."""
    try:
        document = json.loads(record.read_text())
        text = filled(readme.read_text(), document)
        draw(document, record.with_suffix(".svg"))
    except (OSError, ValueError) as error:
        print(f"frontier: {record}: {error}; {readme} stays as it is", file=sys.stderr)
        return 1
    readme.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
