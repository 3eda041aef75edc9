"""Lets a package offer names whose modules are imported when a name is first used, and not before (PEP 562)."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__all__`, `__getattr__` and `__dir__`.

    Args:
        homes: the names by the module of the package that each is imported from.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{home_of[name]}", package), name)

    return sorted(home_of), get, lambda: sorted({*vars(sys.modules[package]), *home_of})
