"""Plans outside their limits are refused; plans are read as they are written."""

import re
from typing import Any

import pytest

from milkweed.models.layers.token_plan import ALL_TOKENS, TokenMerging, TokenPlan


@pytest.mark.parametrize(("arguments", "message"), [
    ({"share": 0}, "share 0 must be above 0 and at most 0.5"),
    ({"share": 0.0}, "share 0.0 must be above 0 and at most 0.5"),
    ({"share": 0.51}, "share 0.51 must be above 0 and at most 0.5"),
    ({"share": float("nan")}, "share nan must be above 0"),
    ({"share": True}, "share True must be above 0"),
    ({"share": "0.2"}, "share '0.2' must be above 0"),
    ({"start": -1}, "start -1 must be a whole number from 0 to 255"),
    ({"start": 3.0}, "start 3.0 must be a whole number from 0 to 255"),
    ({"every": 0}, "every 0 must be a whole number from 1 to 255"),
    ({"protect": -0.1}, "protect -0.1 must be between 0 and 1"),
    ({"protect": 2}, "protect 2 must be between 0 and 1"),
    ({"protect": None}, "protect None must be between 0 and 1"),
])  # fmt: skip
def test_schedules_outside_the_limits_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^merging: {message}"):
        TokenMerging(**arguments)
    with pytest.raises(ValueError, match=f"^merging: {message}"):
        TokenPlan.from_dict({"merging": arguments})


@pytest.mark.parametrize(("document", "message"), [
    ([], "tokens [] must be an object"),
    ({"classlast": True}, "tokens: unknown member 'classlast': must be one of class_last, merging"),
    ({"class_last": 1}, "class_last 1 must be true or false"),
    ({"merging": 3}, "merging 3 must be an object"),
    ({"merging": {"share": 0.2, "r": 3}}, "merging: unknown member 'r': must be one of every, protect, share, start"),
])  # fmt: skip
def test_documents_that_are_no_plan_are_refused(document: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TokenPlan.from_dict(document)


def test_plans_are_read_as_they_are_written() -> None:
    for plan in (
        ALL_TOKENS,
        TokenPlan(class_last=True),
        TokenPlan(TokenMerging(2, 3, 0.3, 0.1)),
        TokenPlan(TokenMerging(), True),
    ):
        assert TokenPlan.from_dict(plan.to_dict()) == plan
        assert bool(plan) is (plan != ALL_TOKENS)
    assert ALL_TOKENS.to_dict() == {}


def test_a_plan_is_said_in_one_line() -> None:
    assert ALL_TOKENS.summary == "all"
    plan = TokenPlan(TokenMerging(3, 2, 0.22), True)
    assert plan.summary == "22 % merged from block 3 on, every 2 blocks; the last block for the class token alone"
    protected = TokenPlan(TokenMerging(3, 1, 0.26, 0.1)).summary
    assert protected == "26 % merged from block 3 on, in every block, what the class token attends to kept (0.1)"


def test_schedules_never_reach_the_last_block() -> None:
    assert list(TokenMerging(3, 2).blocks(12)) == [3, 5, 7, 9]
    assert list(TokenMerging(3, 1).blocks(12)) == [3, 4, 5, 6, 7, 8, 9, 10]
    assert list(TokenMerging(11).blocks(12)) == []
    assert [TokenMerging(share=0.22).count(n) for n in (196, 153, 120, 94, 2, 1, 0)] == [43, 34, 26, 21, 0, 0, 0]
    assert [TokenMerging(share=0.5).count(n) for n in (196, 195, 4, 3, 2, 1, 0)] == [97, 97, 1, 1, 0, 0, 0]
