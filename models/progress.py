"""Defines the functions that long work calls to report how far it is. The work knows neither a terminal nor a log."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


def ignore(*_: object) -> None:
    """Nobody listens."""


Count = Callable[[int, int], None]
"""Takes the units done and the units in all."""


@dataclass(frozen=True)
class Progress:
    """Three functions that long work calls; by default nobody listens.

    Args:
        step: takes the name of the step, the units done and the units in all; a step ends where another begins.
        row: takes each row of a training's history when it is complete.
        note: takes a sentence for a person.
    """

    step: Callable[[str, int, int], None] = ignore
    row: Callable[[Mapping[str, Any]], None] = ignore
    note: Callable[[str], None] = ignore

    def of(self, step: str) -> Count:
        """Return the function that takes the counts of one step."""
        return lambda done, total: self.step(step, done, total)


SILENT = Progress()
