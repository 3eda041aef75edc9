"""Shares a budget out among layers: gives each the structure with which the expected damage is least.

Errors of different layers are nearly independent, so what they do to the answers adds up: the damage of a choice
is the sum over layers of measured sensitivity times expected error. Every layer begins at its cheapest, and the budget
is spent step by step where a step takes most damage away for its cost. That goes along the lower convex hull of each
layer's options, as the Lagrangian relaxation does, and spends the rest, which no step on the hull fits, as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


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
    chosen = {name: min(layer, key=lambda option: (option.cost, option.damage)) for name, layer in options.items()}
    least = sum(option.cost for option in chosen.values())
    if least > budget:
        raise ValueError(f"budget {budget:g} cannot be met: the least possible is {least:g}")
    left = budget - least
    while steps := [
        ((chosen[name].damage - option.damage) / (option.cost - chosen[name].cost), name, option)
        for name, layer in options.items()
        for option in layer
        if 0 < option.cost - chosen[name].cost <= left and option.damage < chosen[name].damage
    ]:
        _, name, option = max(steps, key=lambda step: step[0])
        left -= option.cost - chosen[name].cost
        chosen[name] = option
    return chosen
