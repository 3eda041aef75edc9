"""Parses strict JSON: bounded size and depth, no duplicate keys, nothing that could not be written again.

Every error is one plain sentence.
"""

import json
from math import isfinite
from typing import Any

from ..errors import quoted, stand_in

MAX_JSON_BYTES = 16 << 20
"""Far above any real config or label file; a larger one is a mistake or an attack."""

MAX_JSON_DEPTH = 64
"""A server that writes the value again, deep in its calls, must not run out of stack."""


def parse_json(data: bytes) -> Any:
    """Parse UTF-8 JSON strictly.

    Raises:
        ValueError: too large, not UTF-8, not JSON, NaN, a number beyond a double's range, half of a surrogate pair, a
            duplicate key, nested too deep; names the value.
    """
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"{len(data)} bytes of JSON, the limit is {MAX_JSON_BYTES}")
    try:
        value = json.loads(
            data, object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_float, parse_int=_int
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        problem = stand_in(data) or f"{error.msg} at line {error.lineno} column {error.colno}"
        raise ValueError(f"not JSON: {problem}") from None
    except RecursionError:
        raise ValueError(f"JSON nested too deep: the limit is {MAX_JSON_DEPTH}") from None
    _check(value)
    return value


def canonical_json(value: Any) -> bytes:
    """The form that hashes are computed from: sorted keys, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def readable_json(value: Any) -> bytes:
    """The form for files: indented, keys in order, a newline at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"not strict JSON: key {quoted(name)} appears twice in one object")
        result[name] = value
    return result


def _no_constant(name: str) -> None:
    raise ValueError(f"not strict JSON: {name} is not a number")


def _float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"not strict JSON: {quoted(text)} is beyond the range of a double")
    return value


def _int(text: str) -> int:
    _float(text)
    return int(text)


def _check(value: Any) -> None:
    """Check depth and texts, level by level."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        for item in level:
            if isinstance(item, str) and not item.isascii():
                _check_text(item)
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return
    raise ValueError(f"JSON nested too deep: the limit is {MAX_JSON_DEPTH}")


def _inside(value: Any) -> list[Any]:
    return [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"not strict JSON: {quoted(text)} has half of a surrogate pair") from None
