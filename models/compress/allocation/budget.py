"""Shares a budget out among layers: gives each the structure with which the expected damage is least.

Errors of different layers are nearly independent, so what they do to the answers adds up: the damage of a choice
is the sum over layers of measured sensitivity times expected error. For a price on cost, each layer's best
option is found by itself (Lagrangian relaxation). The price is bisected until the budget is met, and the rest of
the budget, which no price on the convex hull spends, is spent greedily.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_BISECTIONS = 100


@dataclass(frozen=True)
class Option(Generic[T]):
    """One structure that a layer could become.

    Args:
        value: the structure; the option with the greatest cost is usually the layer as it is.
        cost: its cost in the budget's unit, such as weights.
        damage: its expected damage in a unit that adds up over layers, such as nats of KL.
    """

    value: T
    cost: float
    damage: float


def allocate(options: Mapping[str, Sequence[Option[T]]], budget: float) -> dict[str, Option[T]]:
    """Choose an option for each layer with the least damage in all and a cost of at most `budget`.

    Raises:
        ValueError: no choice is that cheap; the message names the smallest cost possible.
    """
    least = sum(min(option.cost for option in layer) for layer in options.values())
    if least > budget:
        raise ValueError(f"budget {budget:g} cannot be met: the least possible is {least:g}")
    price = _least_price(options, budget)
    return _spend(options, _at_price(options, price), budget)


def _least_price(options: Mapping[str, Sequence[Option[T]]], budget: float) -> float:
    """The least price of cost at which every layer's best options together meet the budget."""
    if _cost(_at_price(options, 0.0)) <= budget:
        return 0.0
    low, high = 0.0, 1e-300
    while _cost(_at_price(options, high)) > budget:  # ends: at a price high enough every layer is at its cheapest
        low, high = high, high * 1024
    for _ in range(_BISECTIONS):
        middle = (low * high) ** 0.5
        if not low < middle < high:
            break
        if _cost(_at_price(options, middle)) > budget:
            low = middle
        else:
            high = middle
    return high


def _at_price(options: Mapping[str, Sequence[Option[T]]], price: float) -> dict[str, Option[T]]:
    """Each layer's best option at a price; of equals the cheaper one."""
    return {
        name: min(layer, key=lambda option: (option.damage + price * option.cost, option.cost))
        for name, layer in options.items()
    }


def _spend(
    options: Mapping[str, Sequence[Option[T]]], chosen: dict[str, Option[T]], budget: float
) -> dict[str, Option[T]]:
    """Spend the rest of the budget where it takes most damage away for its cost."""
    left = budget - _cost(chosen)
    while True:
        steps = [
            ((chosen[name].damage - option.damage) / (option.cost - chosen[name].cost), name, option)
            for name, layer in options.items()
            for option in layer
            if 0 < option.cost - chosen[name].cost <= left and option.damage < chosen[name].damage
        ]
        if not steps:
            return chosen
        _, name, option = max(steps, key=lambda step: step[0])
        left -= option.cost - chosen[name].cost
        chosen = {**chosen, name: option}


def _cost(chosen: Mapping[str, Option[T]]) -> float:
    return sum(option.cost for option in chosen.values())
