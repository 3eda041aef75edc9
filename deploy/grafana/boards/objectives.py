"""Objectives: what is left of the budgets of errors and slow answers, and how fast they are spent."""

from typing import NamedTuple

from .panels import Panel, Query, figure, lines
from .series import recorded, recorded_share


class Objective(NamedTuple):
    """An objective, by the recording rules that its alerts use, which keep the labels namespace and job alone.

    Args:
        part, whole: of the rules that count what spends the budget, and all.
        per: of the rules that divide them, as in `requests_failed_per_requests:ratio_rate1h`.
        allowed: the share that may be spent.
    """

    name: str
    part: str
    whole: str
    per: str
    allowed: float
    text: str


OBJECTIVES = (
    Objective("Error", "failed", "requests", "requests", 0.005, "99.5 % of the requests are to be answered"),
    Objective("Latency", "slow", "requests_answered", "answered", 0.01, "99 % of the answers are to take at most 1 s"),
)


def panels() -> list[Panel]:
    """What is left of each budget, then how fast it is spent."""
    return [*map(_left, OBJECTIVES), *map(_burn_rate, OBJECTIVES)]


def _left(objective: Objective) -> Panel:
    name, part, whole, _, allowed, text = objective
    return figure(
        f"{name} budget left",
        "percentunit",
        f"{text}, over 30 days, or as long as Prometheus keeps: how much of the rest is not spent. Below 0 the "
        "objective is missed.",
        f"1 - {recorded_share(f'requests_{part}', whole)} / {allowed}",
        span=6,
        steps=[(0, "orange"), (0.25, "green")],
        decimals=1,
        base="red",
    )


def _burn_rate(objective: Objective) -> Panel:
    name, part, _, per, allowed, _ = objective
    rule = f"requests_{part}_per_{per}:ratio_rate"
    return lines(
        f"{name} budget: burn rate",
        "none",
        "1 spends the budget of 30 days in 30 days. A person is called at 14.4 over an hour and at 6 over six.",
        *(Query(f"max({recorded(f'{rule}{window}')}) / {allowed}", window) for window in ("1h", "6h")),
        span=6,
    )
