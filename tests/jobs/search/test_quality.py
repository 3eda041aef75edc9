"""Answers beside the dense model's: values against a plain count, intervals against the known spread of a mean."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from milkweed.jobs.search.quality import bootstrap, quality
from milkweed.models.report.frontier import Quality


def logs(*rows: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(rows).log()


DENSE = logs((0.7, 0.2, 0.1), (0.1, 0.6, 0.3), (0.5, 0.3, 0.2), (0.2, 0.2, 0.6))
FOUND = logs((0.6, 0.3, 0.1), (0.1, 0.4, 0.5), (0.4, 0.5, 0.1), (0.1, 0.1, 0.8))  # two images change sides


def test_each_measure_is_the_mean_over_images() -> None:
    found = quality(DENSE, FOUND, torch.tensor([0, 2, 0, 2]))
    kl = sum(
        p * math.log(p / q) for a, b in zip(DENSE.exp(), FOUND.exp(), strict=True) for p, q in zip(a, b, strict=True)
    )
    assert found.kl.value == pytest.approx(float(kl) / 4, rel=1e-5)
    assert found.agreement.value == 50
    assert found.top1 is not None
    assert found.top1.value == 0  # one image is won and one is lost
    assert found.top1_of_dense == 75
    assert found.change is found.expected
    assert Quality.from_dict(found.to_dict()) == found


def test_without_labels_a_change_is_thrice_what_the_dense_model_thinks_is_lost() -> None:
    found = quality(DENSE, FOUND)
    assert (found.top1, found.top1_of_dense) == (None, None)
    assert found.change.value == pytest.approx(-100 * 3 * ((0.6 - 0.3) + (0.5 - 0.3)) / 4, rel=1e-5)
    assert found.change.low < found.change.value < found.change.high == 0
    assert quality(DENSE, DENSE).change.low == 0


def test_with_labels_a_change_is_what_the_first_answer_wins_over_the_second_at_that_distance() -> None:
    """Counted image by image in numpy, for answers of which the dense model is right as often as it says."""
    rng = np.random.default_rng(0)
    dense = np.log(rng.dirichlet([0.5] * 4, 500))
    labels = np.array([rng.choice(4, p=np.exp(row)) for row in dense])
    found = np.log(0.7 * np.exp(dense) + 0.3 * rng.dirichlet([0.5] * 4, 500))
    order = np.argsort(-dense, 1)
    distances = np.sort(dense, 1)[:, -1] - np.sort(dense, 1)[:, -2]
    lost, bounds = 0.0, [0, 0.3, 0.7, 1.2, 2, np.inf]
    for low, high in pairwise(bounds):
        inside = (distances > low) & (distances <= high)
        wins = (order[inside, 0] == labels[inside]).sum() - (order[inside, 1] == labels[inside]).sum()
        top = found.argmax(1)
        gaps = dense.max(1) - dense[np.arange(500), top]
        moved = ((top != order[:, 0]) & (gaps > low) & (gaps <= high)).sum()
        lost += moved * max(0, (wins + 1) / (inside.sum() + 1))
    change = quality(torch.tensor(dense), torch.tensor(found), torch.tensor(labels)).expected
    assert change is not None
    assert change.value == pytest.approx(-100 * lost / 500)
    counted = quality(torch.tensor(dense), torch.tensor(found), torch.tensor(labels)).top1
    assert counted is not None
    assert change.overlaps(counted)
    assert change.high - change.low < 0.7 * (counted.high - counted.low)


def test_a_new_answer_is_lost_as_often_as_the_best_was_right_and_never_a_gain() -> None:
    sure = logs((0.98, 0.01, 0.01)).repeat(8, 1)
    other = logs((0.4, 0.5, 0.1)).repeat(8, 1)
    assert quality(sure, other, torch.zeros(8, dtype=torch.long)).change.value == -100
    assert quality(sure[:1], other[:1], torch.ones(1, dtype=torch.long)).change.value == 0  # the new answer is right


def test_intervals_are_those_of_a_mean() -> None:
    torch.manual_seed(0)
    samples = torch.randn(2, 400) * torch.tensor([[1.0], [3.0]]) + 2
    for row, found in zip(samples, bootstrap(samples), strict=True):
        error = float(row.std()) / 20
        assert found.low == pytest.approx(float(row.mean()) - 1.96 * error, abs=0.2 * error)
        assert found.high == pytest.approx(float(row.mean()) + 1.96 * error, abs=0.2 * error)
    assert bootstrap(samples) == bootstrap(samples)


def test_answers_that_are_no_numbers_or_too_few_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        quality(DENSE, FOUND * math.nan)
    with pytest.raises(ValueError, match=r"\(3, 3\).*\(4, 3\)"):
        quality(DENSE, FOUND[:3])
