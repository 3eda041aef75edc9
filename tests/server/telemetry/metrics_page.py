"""The series that docs/observability.md says a server exports; a test of the server holds the page to what it does."""

from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[3] / "docs" / "observability.md"


class Family(NamedTuple):
    """A row of the page: the labels, and whether it is a histogram."""

    labels: frozenset[str]
    is_histogram: bool


def documented_families() -> dict[str, Family]:
    """Return the families of the page by name, without the prefix `milkweed_`."""
    families = {}
    table = PAGE.read_text(encoding="utf-8").partition("| family | labels | |\n")[2].partition("\n\n")[0]
    for row in table.splitlines()[1:]:
        names, labels, text = (cell.strip() for cell in row.strip("|").split("|", 2))
        family = Family(frozenset(filter(None, labels.split(", "))), text.startswith("histogram"))
        families |= dict.fromkeys(names.replace("`", "").split(", "), family)
    return families
