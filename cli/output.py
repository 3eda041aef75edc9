"""Prints to stdout: one JSON object for programs, or text and tables for a person."""

import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..models.errors import printable

if TYPE_CHECKING:
    from ..models import BundleConfig

PIPE_WIDTH = 240
"""The width of a table, in characters, where stdout is no terminal."""

NAMED_LAYERS = 5
"""How many of the layers that could not be int8 are named; --json and the bundle have all."""


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON object, ASCII, so that any locale can print it."""
    print(json.dumps(document, indent=2, allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns whose name begins with a blank hold numbers and are aligned to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(" ")
        table.add_column(column.strip(), justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        table.add_row(*(printable(str(cell)) for cell in row))
    print_rich(table)


def print_rich(renderable: object) -> None:
    """Print an object of rich."""
    from rich.console import Console

    # Names of files and labels are data: no markup, emoji or colours in them.
    console = Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else PIPE_WIDTH, markup=False, emoji=False, highlight=False
    )
    console.print(renderable)


def print_fields(fields: Mapping[str, object]) -> None:
    """Print `name  value` lines with the values aligned."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        print(printable(f"{name:<{width}}  {value}"))


def note(text: str) -> None:
    """Print one line for a person on stderr."""
    print(f"milkweed: {printable(text)}", file=sys.stderr, flush=True)


def megabytes(count: int) -> str:
    """Write a number of bytes in decimal megabytes."""
    return f"{count / 1e6:,.2f} MB"


def bundle_line(folder: Path, config: "BundleConfig") -> str:
    """Name a bundle that was written: its folder, version and size."""
    return f"{folder} (version {config.version}, {megabytes(config.bytes_on_disk)})"


def sure_field(config: "BundleConfig") -> dict[str, Any]:
    """The line on the bundle's threshold of confidence, where it holds one."""
    return {} if config.confidence is None else {"sure": str(config.confidence)}


def skipped_images(skipped: Mapping[Path, Any]) -> list[dict[str, str]]:
    """List the images that got an error, as plain data."""
    return [{"image": str(path), "code": error.code, "message": error.message} for path, error in skipped.items()]


def command_line() -> str:
    """Return the command that runs now, as it would be typed."""
    return shlex.join(["milkweed", *sys.argv[1:]])


def storage_line(storage: Mapping[str, str]) -> str:
    """Say how many layers of a bundle are stored in each precision."""
    counts = Counter(storage.values())
    return ", ".join(f"{precision} in {count} layers" for precision, count in counts.most_common()) or "float32"


def int8_lines(record: Mapping[str, Any]) -> dict[str, str]:
    """Describe int8 by a bundle's `metrics["storage"]`: how far it is off, and in which layers that was too far."""
    int8 = record.get("int8")
    if int8 is None:
        return {}
    limit, kept = int8["limit"], int8["kept_bfloat16"]
    off, tried = int8["largest_error"], int8["tried_on"]
    lines = {} if off is None else {"int8": f"a layer's outputs are off by at most {off:.4f}, tried on {tried}"}
    if not kept:
        return lines
    named = ", ".join(
        f"{name} ({'not reached' if error is None else format(error, '.4f')})"
        for name, error in list(kept.items())[:NAMED_LAYERS]
    )
    more = f" and {len(kept) - NAMED_LAYERS} more" if len(kept) > NAMED_LAYERS else ""
    return {**lines, "bfloat16": f"where int8 is off by more than {limit:g}: {named}{more}"}


def flattened(document: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Flatten nested plain data into `a.b.c` names and values; a list of plain values stays one value."""
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
