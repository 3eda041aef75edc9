"""Parses a setting that is a table from one line: `key=value,key=value`, or JSON."""

import json
from collections.abc import Mapping
from typing import Any


def parse_table(value: Any) -> Any:
    """Parse the text of a flag or a variable; return a value that is not text, such as a table of a file, as it is.
    Raises ValueError, which tells what is wrong, without the value."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from None
    table: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in value.split(","))):
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not key or not equals or not text:
            raise ValueError(f"{pair!r} is not key=value")
        if key in table:
            raise ValueError(f"{key} is given twice")
        table[key] = text
    return table


def nested(table: Any) -> Any:
    """Turn a table with keys such as `model.limit` into a table for each model."""
    if not isinstance(table, Mapping) or any(isinstance(value, Mapping) for value in table.values()):
        return table
    tables: dict[str, dict[str, Any]] = {}
    for key, value in table.items():
        name, _, inner = str(key).rpartition(".")
        if not name:
            raise ValueError(f"{key!r} is not name.key")
        tables.setdefault(name, {})[inner] = value
    return tables
