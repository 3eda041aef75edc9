"""Checks the arguments of an architecture, which come from files and so have limits."""

from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any

from ..errors import quoted

MAX_WIDTH = 65_536
MAX_DEPTH = 256
MAX_CLASSES = 1_000_000
MAX_ITEMS = 16
_LIMITS = {
    "depth": MAX_DEPTH,
    "depths": MAX_DEPTH,
    "img_size": 4096,
    "patch_size": 4096,
    "num_classes": MAX_CLASSES,
}


def check_arch_args(arch: str, args: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Refuse unknown names, values that are not plain data, and sizes no real model has.

    Raises:
        ValueError: names the architecture, the argument, the value and the limit.
    """
    for name, value in args.items():
        if name not in allowed:
            raise ValueError(f"{arch} takes no argument {quoted(name)}: must be one of {', '.join(sorted(allowed))}")
        _check_value(arch, name, value, depth=0)


def _check_value(arch: str, name: str, value: Any, depth: int) -> None:
    if isinstance(value, (list, tuple)):
        if len(value) > MAX_ITEMS or depth > 1:
            raise ValueError(f"{arch}: {name} {quoted(value)} must be a list of at most {MAX_ITEMS} items")
        for item in value:
            _check_value(arch, name, item, depth + 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        limit = _LIMITS.get(name, MAX_WIDTH)
        if not 0 <= value <= limit:
            raise ValueError(f"{arch}: {name} {value} must be between 0 and {limit}")
    elif isinstance(value, float):
        if not (isfinite(value) and 0 <= value <= MAX_WIDTH):
            raise ValueError(f"{arch}: {name} {value} must be between 0 and {MAX_WIDTH}")
    elif not (value is None or isinstance(value, bool | str)):
        raise ValueError(f"{arch}: {name} {quoted(value)} must be plain data")
