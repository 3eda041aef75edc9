"""What goes to stdout: one JSON object for programs, or text and tables for a person."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PIPE_WIDTH = 200
"""Characters of a table's line where stdout is no terminal."""


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON object, ASCII, so that any locale can print it."""
    print(json.dumps(document, indent=2, allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns whose name begins with a blank are numbers and go to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(" ")
        table.add_column(column.strip(), justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    print_rich(table)


def print_rich(renderable: object) -> None:
    """Print what rich can draw."""
    from rich.console import Console

    # Names of files and labels are data: no markup, emoji or colours in them.
    console = Console(
        file=sys.stdout,
        width=None if sys.stdout.isatty() else PIPE_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(renderable)


def print_fields(fields: Mapping[str, object]) -> None:
    """Print `name  value` lines, values aligned."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {value}")


def note(text: str) -> None:
    """One line for a person on stderr."""
    print(f"milkweed: {text}", file=sys.stderr, flush=True)


def megabytes(count: int) -> str:
    """Bytes in decimal megabytes."""
    return f"{count / 1e6:,.2f} MB"


def flattened(document: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Nested plain data as `a.b.c` names and values; lists of plain values on one line."""
    flat: dict[str, object] = {}
    for name, value in document.items():
        items = enumerate(value) if _holds_objects(value) else None
        nested = value if isinstance(value, Mapping) else {str(i): item for i, item in items} if items else None
        if nested:
            flat |= flattened(nested, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            flat[f"{prefix}{name}"] = ", ".join(map(str, value))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _holds_objects(value: object) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value)
