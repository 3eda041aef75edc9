"""Answers beside the dense model's: values against a plain count, intervals against the known spread of a mean."""

import math

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
    assert found.change is found.top1
    assert Quality.from_dict(found.to_dict()) == found


def test_without_labels_every_other_answer_may_be_a_loss() -> None:
    found = quality(DENSE, FOUND)
    assert (found.top1, found.top1_of_dense) == (None, None)
    assert found.change.value == -50
    assert found.change.low == found.agreement.low - 100
    assert quality(DENSE, DENSE).change.low == 0


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
