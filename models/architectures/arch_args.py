"""Checks the arguments of an architecture, which come from files and so have limits."""

from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any

from ..errors import quoted

MAX_WIDTH = 65_536
MAX_DEPTH = 256
MAX_CLASSES = 1_000_000
MAX_ITEMS = 16
_WHOLE = {
    **dict.fromkeys(("depth", "depths", "layers", "num_blocks"), (0, MAX_DEPTH)),
    **dict.fromkeys(("img_size", "patch_size", "window_size"), (1, 4096)),
    **dict.fromkeys(("embed_dim", "embed_dims", "dims", "num_heads", "channels", "stem_width"), (1, MAX_WIDTH)),
    "num_classes": (1, MAX_CLASSES),
    "in_chans": (3, 3),
    "reg_tokens": (0, MAX_WIDTH),
}
"""Arguments that are whole numbers, with their limits; images always have three channels."""


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
        if not 0 < len(value) <= MAX_ITEMS or depth > 1:
            raise ValueError(f"{arch}: {name} {quoted(value)} must be a list of 1 to {MAX_ITEMS} items")
        for item in value:
            _check_value(arch, name, item, depth + 1)
    elif name in _WHOLE:
        least, most = _WHOLE[name]
        if type(value) is not int or not least <= value <= most:
            limits = f"a whole number between {least} and {most}" if least < most else f"{most}: images have 3 channels"
            raise ValueError(f"{arch}: {name} {quoted(value)} must be {limits}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        most = 1 if name.endswith("_rate") else MAX_WIDTH
        if not (isfinite(value) and 0 <= value <= most):
            raise ValueError(f"{arch}: {name} {value} must be between 0 and {most}")
    elif not (value is None or isinstance(value, bool | str)):
        raise ValueError(f"{arch}: {name} {quoted(value)} must be plain data")
