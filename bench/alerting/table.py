"""The alert table: fault, alert, seconds until it fired and until it ended."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_COLUMNS = (
    ("fault", 22, "<"),
    ("alert", 28, "<"),
    ("for", 6, ">"),
    ("here", 6, ">"),
    ("pending", 8, ">"),
    ("firing", 7, ">"),
    ("told", 7, ">"),
    ("resolved", 9, ">"),
    ("told", 7, ">"),
)


def head() -> str:
    """The columns' titles. `for` and `here`: how long it is pending, as shipped and on trial."""
    return _line([title for title, _, _ in _COLUMNS])


def lines(tried: Mapping[str, Any]) -> Iterator[str]:
    """One fault's, of `Verdict.as_json`: the last two columns count from when its undoing began."""
    for row in tried["alerts"]:
        until, after = row["seconds_until"], row["seconds_after_undo_began_until"]
        told = "kept" if row["inhibited"] and until["told"] is None else _seconds(until["told"])
        yield _line(
            [
                tried["fault"],
                row["alert"].removeprefix("Milkweed") + (", page" if row["severity"] == "page" else ""),
                _seconds(row["for_seconds"]),
                _seconds(row["for_seconds_here"]),
                _seconds(until["pending"]),
                _seconds(until["firing"]),
                told,
                _seconds(after["resolved"]),
                _seconds(after["told"]),
            ]
        )
    for complaint in tried["complaints"]:
        yield f"! {complaint}"


def _line(cells: Sequence[str]) -> str:
    columns = zip(cells, _COLUMNS, strict=True)
    return " ".join(f"{cell:{side}{width}}" for cell, (_, width, side) in columns).rstrip()


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
