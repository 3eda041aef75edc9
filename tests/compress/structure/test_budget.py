"""Sharing a budget out: against every combination, never above the budget, and what cannot be met is named."""

import itertools
import random

import pytest

from milkweed.compress.structure.budget import Option, allocate

Layers = dict[str, list[Option[str]]]


def random_layers(seed: int, layers: int, options: int) -> Layers:
    """A dense option without damage for each layer, and cheaper ones that do more the cheaper they are."""
    chance = random.Random(seed)
    made: Layers = {}
    for layer in range(layers):
        costs = sorted(chance.sample(range(1, 100), options))
        damages = sorted((chance.expovariate(1) for _ in range(options - 1)), reverse=True)
        values = zip(costs, [*damages, 0.0], strict=True)
        made[f"layer{layer}"] = [Option(f"{cost}", cost, damage) for cost, damage in values]
    return made


def sums(chosen: dict[str, Option[str]]) -> tuple[float, float]:
    """The cost and the damage of all layers together."""
    return sum(o.cost for o in chosen.values()), sum(o.damage for o in chosen.values())


def best(layers: Layers, budget: float) -> float:
    """The least damage within the budget, over all combinations."""
    combinations = itertools.product(*layers.values())
    return min(sum(o.damage for o in chosen) for chosen in combinations if sum(o.cost for o in chosen) <= budget)


def greatest_step(layers: Layers) -> float:
    """The most damage between two neighbours on a layer's lower convex hull.

    The relaxed problem has an optimum with at most one layer between two such neighbours, so taking the cheaper of
    them is worse than any whole choice by no more than this.
    """
    steps = [0.0]
    for options in layers.values():
        hull: list[Option[str]] = []
        for option in sorted(options, key=lambda o: o.cost):
            while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], option):
                hull.pop()
            hull.append(option)
        steps += [left.damage - right.damage for left, right in itertools.pairwise(hull)]
    return max(steps)


def _slope(left: Option[str], right: Option[str]) -> float:
    return (right.damage - left.damage) / (right.cost - left.cost)


@pytest.mark.parametrize("seed", range(40))
def test_it_is_as_good_as_any_combination_but_for_one_step(seed: int) -> None:
    layers = random_layers(seed, layers=5, options=4)
    least = sum(min(o.cost for o in options) for options in layers.values())
    dense = sum(max(o.cost for o in options) for options in layers.values())
    for share in (0.0, 0.2, 0.5, 0.9, 1.0):
        budget = least + share * (dense - least)
        found = allocate(layers, budget)
        cost, damage = sums(found)
        assert cost <= budget
        assert all(option in layers[name] for name, option in found.items())
        optimum = best(layers, budget)
        assert optimum - 1e-9 <= damage <= optimum + greatest_step(layers) + 1e-9


def test_equal_layers_share_a_budget_that_only_some_can_have() -> None:
    """At one price all of them change their minds at once; what is left over must still be spent."""
    options = [Option("small", 10, 1.0), Option("dense", 20, 0.0)]
    assert sums(allocate({f"{layer}": options for layer in range(6)}, 90)) == (90, 3.0)


def test_dearer_and_worse_is_never_chosen() -> None:
    layers = {"a": [Option("small", 1, 1.0), Option("slow", 30, 2.0), Option("dense", 20, 0.0)]}
    assert allocate(layers, 100)["a"].value == "dense"
    assert allocate(layers, 19)["a"].value == "small"


def test_a_budget_that_cannot_be_met_names_the_least() -> None:
    layers = {"a": [Option("x", 10, 1.0), Option("y", 20, 0.0)], "b": [Option("x", 5.5, 1.0)]}
    with pytest.raises(ValueError, match=r"budget 15 cannot be met: the least possible is 15\.5"):
        allocate(layers, 15)
    assert sums(allocate(layers, 15.5)) == (15.5, 2.0)
