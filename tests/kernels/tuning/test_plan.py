"""Cuts as bits, and the cheapest segmentations against all of them."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milkweed.kernels.tuning.plan import Plan, Span, cheapest, cuts_of, every_span, spans_of


def test_bit_i_cuts_after_operator_i() -> None:
    plan = Plan(5, 0b0010, ("a", "b"))
    assert plan.spans == ((0, 2), (2, 5))
    assert plan.bits == "0b0010"
    assert str(plan) == "0b0010 a | b"
    assert Plan(5, 0, ("a",)).bits == "0b0000"
    assert Plan(5, 0b1111, tuple("abcde")).spans == ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))
    assert Plan(1, 0, ("a",)).bits == "0b"


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, 2 ** (n - 1) - 1))))
def test_spans_and_json_give_the_plan_back(drawn: tuple[int, int]) -> None:
    length, cuts = drawn
    path = spans_of(cuts, length)
    assert path[0][0] == 0
    assert path[-1][1] == length
    assert all(before[1] == after[0] for before, after in pairwise(path))
    assert cuts_of(path) == cuts
    plan = Plan(length, cuts, tuple(f"e{i}" for i in range(len(path))))
    assert Plan.from_json(plan.as_json()) == plan


@given(st.integers(2, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, 2 ** (n - 1) - 1))))
def test_a_plan_without_an_end_is_the_plan_of_the_others(drawn: tuple[int, int]) -> None:
    length, cuts = drawn
    plan = Plan(length, cuts, tuple(f"e{i}" for i in range(len(spans_of(cuts, length)))))
    impl_of = [name for (start, end), name in zip(plan.spans, plan.impls, strict=True) for _ in range(start, end)]
    for shorter, kept in ((plan.without_first(), slice(1, None)), (plan.without_last(), slice(None, -1))):
        spans = zip(shorter.spans, shorter.impls, strict=True)
        assert [name for (start, end), name in spans for _ in range(start, end)] == impl_of[kept]


@pytest.mark.parametrize(("length", "cuts", "impls"), [(0, 0, ()), (3, 4, ("a",)), (3, -1, ("a",)), (3, 1, ("a",))])
def test_plans_that_cannot_be_are_refused(length: int, cuts: int, impls: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"places|segments"):
        Plan(length, cuts, impls)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"cuts": 2, "engines": ["a"]},
        {"cuts": "0b0", "engines": "a"},
        {"cuts": "0b0", "engines": [1]},
        {"cuts": "0b12", "engines": ["a", "b"]},
        {"cuts": "0b01", "engines": ["a"]},
        {"cuts": "101", "engines": ["a"]},
    ],
)
def test_json_that_is_no_plan_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a plan|impls for|invalid literal"):
        Plan.from_json(value)


@st.composite
def priced_chains(draw: st.DrawFn) -> tuple[int, dict[Span, float]]:
    """A chain's length, and what some of its segments cost: few different prices, so that there are ties."""
    length = draw(st.integers(1, 7))
    price = st.one_of(st.none(), st.integers(0, 6))
    drawn = {span: draw(price) for span in every_span(length)}
    return length, {span: float(cost) for span, cost in drawn.items() if cost is not None}


@given(priced_chains(), st.integers(1, 6))
def test_the_cheapest_are_those_of_all_segmentations(chain: tuple[int, dict[Span, float]], count: int) -> None:
    length, costs = chain
    paths = [spans_of(cuts, length) for cuts in range(1 << (length - 1))]
    totals = sorted(total for path in paths if (total := sum(costs.get(s, math.inf) for s in path)) < math.inf)
    found = cheapest(costs, length, count)
    assert [cost for cost, _ in found] == totals[:count]
    assert len({path for _, path in found}) == len(found)
    for cost, path in found:
        assert sum(costs[span] for span in path) == cost
        assert path in paths


def test_nothing_is_found_where_an_operator_runs_nowhere() -> None:
    assert cheapest({(0, 1): 1.0, (2, 3): 1.0}, 3) == []
