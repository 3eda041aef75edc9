"""Progress: whom a job tells how far it is. Jobs know neither a terminal nor a log."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..loaders.errors import InputError

NAMED = 20
"""Skipped images that are named one by one; reports and --json have all."""


def _ignore(*_: object) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Progress:
    """Three functions that a job calls; by default nobody listens.

    Args:
        step: takes the name of the step, the units done and the units in all; a step ends where another begins.
        row: takes each row of a training's history when it is complete.
        note: takes a sentence for a person.
    """

    step: Callable[[str, int, int], None] = _ignore
    row: Callable[[Mapping[str, Any]], None] = _ignore
    note: Callable[[str], None] = _ignore

    def skipped(self, images: Mapping[Path, InputError]) -> None:
        """Note the images that could not be read: the first ones each, the others as a number."""
        for path, error in list(images.items())[:NAMED]:
            self.note(f"skipped {path}: {error.code}: {error.message}")
        if len(images) > NAMED:
            self.note(f"skipped {len(images) - NAMED} more")
