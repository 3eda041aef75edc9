"""Targets are met by what was measured, or refused with what can be had."""

import pytest

from milkweed.compress.selection import MeasuredCandidate as Model
from milkweed.compress.selection import Target, TargetError, keeping, pick, speedup
from milkweed.models.report.frontier import ConfidenceInterval, Quality, pareto_frontier


def model(name: str, ms: float, kl: float, low: float = 0.0, size: int = 100, alone: float | None = None) -> Model:
    change = ConfidenceInterval(low / 2, low, 0.0)
    quality = Quality(250, ConfidenceInterval(kl, kl, kl), ConfidenceInterval(99, 98, 100), change, 81.0)
    return Model(name, quality, {8: ms, 1: ms if alone is None else alone}, size, "openvino int8")


DENSE = model("dense", 24, 0.0, size=400)
MODELS = [
    DENSE,
    model("int8", 12, 0.005, -0.5),
    model("tokens", 8, 0.03, -1.5, alone=10),
    model("more", 6, 0.08, -4, alone=9),
    model("beaten", 13, 0.02, -1.2),
    model("slow", 30, 0.001, size=20),
]


def test_the_frontier_has_what_nothing_beats() -> None:
    assert [one.name for one in pareto_frontier(MODELS, 8)] == ["more", "tokens", "int8", "dense"]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (Target(speedup=2), "int8"),
        (Target(speedup=2.3), "tokens"),  # its speedup is 2.4 at batch 1, 3 at batch 8
        (Target(ms=9), "more"),
        (Target(drop=1), "int8"),
        (Target(drop=2), "tokens"),
        (Target(drop=0.1), "dense"),
        (Target(), "tokens"),
        (Target(bytes=100), "slow"),  # bytes alone may cost speed
    ],
)
def test_a_target_is_met_with_the_least_divergence_or_fastest(target: Target, name: str) -> None:
    assert pick(MODELS, DENSE, target).name == name


def test_of_models_that_are_about_as_fast_the_one_with_less_divergence_is_taken() -> None:
    near = [DENSE, model("fastest", 9.9, 0.02), model("nearer", 10, 0.01), model("slower", 11, 0.001)]
    assert pick(near, DENSE, Target(drop=50)).name == "nearer"


def test_a_promise_is_tested_from_the_slowest_on_up_to_the_first_that_fails() -> None:
    unsure = [*MODELS, model("doubtful", 9, 0.01, -2.5)]  # "tokens", which is faster and keeps it, is not reached
    assert [kept.name for kept in keeping(unsure, 2)] == ["dense", "int8"]
    assert pick(unsure, DENSE, Target(drop=2)).name == "int8"
    off_the_frontier = [*MODELS, model("worse", 12.5, 0.006, -9)]
    assert [kept.name for kept in keeping(off_the_frontier, 2)] == ["dense", "int8", "tokens"]


def test_what_is_slower_than_the_dense_model_is_not_taken() -> None:
    slow = [DENSE, model("slow", 30, 0.001)]
    assert pick(slow, DENSE, Target(drop=50)).name == "dense"
    assert speedup(slow[1], DENSE) == 0.8


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            Target(speedup=3),
            "a speedup of 3 over dense cannot be reached: the fastest of 5 .* a speedup of 2.67",
        ),
        (Target(ms=2), "2 ms/image cannot be reached: .* 9.00 ms/image .more, openvino int8, KL 0.0800."),
        (Target(bytes=10), "10 bytes cannot be reached: the least of 6 models has 20 bytes .slow"),
    ],
)
def test_a_target_that_cannot_be_met_says_what_can(target: Target, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        pick(MODELS, DENSE, target)


def test_a_loss_that_so_few_images_cannot_show_is_refused_with_what_they_show() -> None:
    with pytest.raises(TargetError, match=r"at most 0.1 points cannot be shown by 250 images.*up to 0.50 points .int8"):
        pick(MODELS[1:3], DENSE, Target(drop=0.1))


def test_a_target_is_one_number_above_nothing() -> None:
    with pytest.raises(ValueError, match="speedup and bytes: only one"):
        Target(speedup=2, bytes=5)
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be a number above 0"):
            Target(speedup=wrong)
