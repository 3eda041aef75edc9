"""Parses which models are shadows of which: each sees a share of the images that another one answers."""

import math
from collections.abc import Mapping
from typing import Any

from .tables import parse_table


def parse_shadow(name: str, text: object) -> tuple[str, float]:
    """The model and the share, 0..1, in `MODEL:SHARE`. Raises ValueError, naming the shadow."""
    model, _, share = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    try:
        value = math.nan if "_" in share else float(share)
    except ValueError:
        value = math.nan
    if not model or not 0 <= value <= 1:
        raise ValueError(f"{name} is a shadow of {text!r}: expected MODEL:SHARE with a share 0..1")
    return model, value


def parse_shadows(shadows: Mapping[str, str]) -> dict[str, tuple[str, float]]:
    """The model and the share of each shadow in the setting."""
    return {name: parse_shadow(name, text) for name, text in shadows.items()}


def read_shadows(value: Any) -> Any:
    """Read the setting: `small=big:0.05,tiny=big:0.01`, JSON, or a table. Raises ValueError for an invalid share, and
    for a shadow of itself or of another shadow."""
    table = parse_table(value)
    for name, text in table.items() if isinstance(table, Mapping) else ():
        model, _ = parse_shadow(name, text)
        if model == name:
            raise ValueError(f"{name} is a shadow of itself")
        if model in table:
            raise ValueError(f"{name} is a shadow of {model}, which is a shadow itself")
    return table
