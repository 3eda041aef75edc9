"""Fault: something that goes wrong, how it is made and undone, and who must be told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..answers import Key
from .scene import Scene

Act = Callable[[Scene], object]


def page(name: str) -> Key:
    """The alert of this name that wakes a person."""
    return f"Milkweed{name}", "page"


def ticket(name: str) -> Key:
    """The alert of this name that is for the next day."""
    return f"Milkweed{name}", "ticket"


def nothing(scene: Scene) -> dict[str, Any]:
    """Nothing is to be done, and nothing set."""
    return {}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    Args:
        name: on the command line.
        what: is done, and `undone`: what is done about it, for the table.
        fires: alerts that must fire and be told.
        make, undo: do it. Seconds until an alert ends count from when `undo` begins.
        prepare: what has to be so before, once all is scraped.
        inhibited: alerts that must fire and that Alertmanager must keep to itself, since one of `fires` explains them.
        may_fire: alerts that are right where they fire, but need not in so short a time.
        tells_end: whether the end must be told, too. What ends while another alert inhibits it is not told.
        unharmed: whether every request must be answered with 200 all the same.
        replicas: servers; the first gets the requests.
        images: the format of what is sent.
        quicker: how much shorter still durations are, where an alert looks back for hours.
        settings: of all servers, by field name; `needs` makes files and says the settings that name them.
    """

    name: str
    what: str
    undone: str
    fires: tuple[Key, ...]
    make: Act
    undo: Act
    prepare: Act = nothing
    inhibited: tuple[Key, ...] = ()
    may_fire: tuple[Key, ...] = ()
    tells_end: bool = True
    unharmed: bool = False
    replicas: int = 1
    images: str = "NPY"
    quicker: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: Callable[[Scene], dict[str, Any]] = nothing


BUDGETS = (
    page("ErrorBudgetBurn"),
    ticket("ErrorBudgetBurn"),
    page("LatencyBudgetBurn"),
    ticket("LatencyBudgetBurn"),
)
"""A few failed or slow requests are much of the few that are sent."""

GONE = (page("Absent"), ticket("TargetDown"))
"""A start takes seconds, which are minutes where durations are shortened; a scrape that comes late is one."""
