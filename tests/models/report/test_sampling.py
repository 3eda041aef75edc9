"""Sampling errors against samples that were drawn."""

from math import sqrt

import numpy as np
import pytest

from milkweed.models.report import Measured
from milkweed.models.report.sampling import accuracy_change, sampling_error


@pytest.mark.parametrize(("percent", "images"), [(81.2, 250), (50.0, 1000), (97.0, 500)])
def test_sampling_error_is_the_spread_of_samples(percent: float, images: int) -> None:
    drawn = np.random.default_rng(0).binomial(images, percent / 100, 20_000) * 100 / images
    assert sampling_error(percent, images) == pytest.approx(drawn.std(), rel=0.03)


def test_no_sample_promises_certainty() -> None:
    assert sampling_error(100.0, 0) is None
    for percent in (0.0, 100.0):
        error = sampling_error(percent, 50)
        assert error is not None
        assert 0.5 < error < 2.5


@pytest.mark.parametrize("seed", range(5))
def test_change_of_paired_answers_is_bounded_by_their_disagreement(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 10, 400)
    before = np.where(rng.random(400) < 0.8, truth, rng.integers(0, 10, 400))
    after = np.where(rng.random(400) < 0.85, before, rng.integers(0, 10, 400))
    right_before, right_after = before == truth, after == truth
    first = Measured(top1=100 * right_before.mean(), images=400)
    second = Measured(top1=100 * right_after.mean(), agreement=100 * (before == after).mean(), images=400)
    found = accuracy_change(first, second)
    assert found is not None
    change, error = found
    difference = right_after.astype(float) - right_before
    assert change == pytest.approx(100 * difference.mean())
    exact = 100 * difference.std() / sqrt(400)
    independent = accuracy_change(first, Measured(top1=second.top1, images=400))
    assert independent is not None
    assert exact <= error < 1.5 * exact
    assert error < independent[1]


def test_equal_answers_still_leave_an_error() -> None:
    found = accuracy_change(Measured(top1=80.0, images=100), Measured(top1=80.0, agreement=100.0, images=100))
    assert found == (0.0, pytest.approx(1.0))


def test_different_images_are_not_compared() -> None:
    measured = Measured(top1=80.0, images=100)
    for other in (None, Measured(top1=80.0, images=99), Measured(images=100)):
        assert accuracy_change(measured, other) is None
        assert accuracy_change(other, measured) is None
