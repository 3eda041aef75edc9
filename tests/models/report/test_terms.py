"""Figures as a person reads them, layers by their names, and chance against samples that were drawn."""

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import pytest

from milkweed.models.report import Measured, terms


@pytest.mark.parametrize(
    ("spelled", "texts"),
    [
        (
            terms.compact,
            {0: "0", 937: "937", 999.4: "999", 1000: "1.00 k", 147_456: "147 k", 999_499: "999 k", 999_600: "1.00 M"}
            | {5_717_416: "5.72 M", 99_960_000: "100 M", 1_258_000_000: "1.26 G"},
        ),
        (
            terms.three_digits,
            {0.0: "0.000", 0.0031: "0.0031", 0.412: "0.412", 9.996: "10.0", 58.23: "58.2", 99.96: "100"},
        ),
        (
            terms.duration,
            {0.04: "0.0 s", 9.96: "10.0 s", 59.4: "59 s", 59.6: "1 min 00 s", 200: "3 min 20 s", 7500: "2 h 05 min"},
        ),
        (terms.points, {-6.78: "−6.8", 0.04: "±0.0", 1: "+1.0"}),
        (terms.size, {22_869_664: "22.9 MB", 30: "30 B"}),
        (lambda count: terms.counted(count, "image"), {1: "1 image", 10_000: "10,000 images"}),
        (terms.optional, {None: "–"}),
        (terms.percent, {None: "–", 62.54: "62.5 %"}),
    ],
)
def test_spelling(spelled: Callable[[Any], str], texts: dict[Any, str]) -> None:
    assert {value: spelled(value) for value in texts} == texts


@pytest.mark.parametrize(("percent", "images"), [(81.2, 250), (50.0, 1000), (97.0, 500)])
def test_sampling_error_is_the_spread_of_samples(percent: float, images: int) -> None:
    drawn = np.random.default_rng(0).binomial(images, percent / 100, 20_000) * 100 / images
    assert terms.sampling_error(percent, images) == pytest.approx(drawn.std(), rel=0.03)


def test_no_sample_promises_certainty() -> None:
    assert terms.sampling_error(100.0, 0) == 50.0
    for percent in (0.0, 100.0):
        assert terms.sampling_error(percent, 50) == pytest.approx(1.407, abs=0.001)
    equal = terms.accuracy_change(Measured(top1=80.0, images=100), Measured(top1=80.0, agreement=100.0, images=100))
    assert equal == (0.0, pytest.approx(1.0))


@pytest.mark.parametrize("seed", range(5))
def test_change_of_paired_answers_is_bounded_by_their_disagreement(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 10, 400)
    before = np.where(rng.random(400) < 0.8, truth, rng.integers(0, 10, 400))
    after = np.where(rng.random(400) < 0.85, before, rng.integers(0, 10, 400))
    right_before, right_after = before == truth, after == truth
    first = Measured(top1=100 * right_before.mean(), images=400)
    second = Measured(top1=100 * right_after.mean(), agreement=100 * (before == after).mean(), images=400)
    found = terms.accuracy_change(first, second)
    independent = terms.accuracy_change(first, Measured(top1=second.top1, images=400))
    assert found is not None
    assert independent is not None
    difference = right_after.astype(float) - right_before
    assert found[0] == pytest.approx(100 * difference.mean())
    exact = 100 * difference.std() / sqrt(400)
    assert exact <= found[1] < min(1.5 * exact, independent[1])


def test_different_images_are_not_compared() -> None:
    measured = Measured(top1=80.0, images=100)
    for other in (None, Measured(top1=80.0, images=99), Measured(images=100)):
        assert terms.accuracy_change(measured, other) is None
        assert terms.accuracy_change(other, measured) is None
