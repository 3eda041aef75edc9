"""Strict JSON: bounded size, no NaN, no duplicate keys, one plain sentence when it is not."""

import json
from typing import Any

MAX_JSON_BYTES = 16 << 20
"""Far above any real config or label file; a larger one is a mistake or an attack."""


def parse_json(data: bytes) -> Any:
    """Parse UTF-8 JSON strictly.

    Raises:
        ValueError: too large, not UTF-8, not JSON, NaN or infinity, a duplicate key, nested too deep.
    """
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"{len(data)} bytes of JSON, the limit is {MAX_JSON_BYTES}")
    try:
        return json.loads(data, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise ValueError("JSON nested too deep") from None


def canonical_json(value: Any) -> bytes:
    """The one spelling that hashes are taken of: keys sorted, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def readable_json(value: Any) -> bytes:
    """The spelling for files: indented, order kept, a newline at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"not strict JSON: key {double!r} appears twice in one object")
    return result


def _no_constant(name: str) -> None:
    raise ValueError(f"not strict JSON: {name} is not a number")
