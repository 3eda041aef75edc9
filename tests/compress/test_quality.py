"""Answers beside the dense model's: values against a plain count, intervals against the known spread of a mean."""

import math

import numpy as np
import pytest
import torch

from milkweed.compress.quality import QualityEvaluator, bootstrap, embedding_quality
from milkweed.models.report.frontier import Quality


def logs(*rows: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(rows).log()


DENSE = logs((0.7, 0.2, 0.1), (0.1, 0.6, 0.3), (0.5, 0.3, 0.2), (0.2, 0.2, 0.6))
FOUND = logs((0.6, 0.3, 0.1), (0.1, 0.4, 0.5), (0.4, 0.5, 0.1), (0.1, 0.1, 0.8))  # two images change sides


def test_each_measure_is_the_mean_over_images() -> None:
    found = QualityEvaluator(DENSE, torch.tensor([0, 2, 0, 2]))(FOUND)
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
    found = QualityEvaluator(DENSE)(FOUND)
    assert (found.top1, found.top1_of_dense) == (None, None)
    assert found.change.value == pytest.approx(-100 * 3 * ((0.6 - 0.3) + (0.5 - 0.3)) / 4, rel=1e-5)
    assert found.change.low < found.change.value < found.change.high == 0
    assert QualityEvaluator(DENSE)(DENSE).change.low == 0


def test_with_labels_a_change_is_by_the_temperature_that_fits_them() -> None:
    """Half as sure as it is right, the dense model has a temperature of about one half."""
    rng = np.random.default_rng(0)
    truth = 3 * rng.normal(size=(2000, 4))
    truth -= np.log(np.exp(truth).sum(1, keepdims=True))
    labels = np.array([rng.choice(4, p=np.exp(row)) for row in truth])
    dense = truth / 2 - np.log(np.exp(truth / 2).sum(1, keepdims=True))
    found = truth + 0.8 * rng.normal(size=truth.shape)
    measured = QualityEvaluator(torch.tensor(dense), torch.tensor(labels))(torch.tensor(found))
    change, counted = measured.expected, measured.top1
    assert change is not None
    assert counted is not None
    rows, top = np.arange(2000), found.argmax(1)
    lost = (np.exp(truth)[rows, top] - np.exp(truth).max(1)).mean()
    assert change.value == pytest.approx(1.5 * 100 * lost, rel=0.1)
    assert change.low < counted.value < 0
    assert change.high - change.low < 0.6 * (counted.high - counted.low)


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
        QualityEvaluator(DENSE)(FOUND * math.nan)
    with pytest.raises(ValueError, match=r"\(3, 3\).*\(4, 3\)"):
        QualityEvaluator(DENSE)(FOUND[:3])


def test_answers_are_sure_by_labels_or_else_by_the_dense_model() -> None:
    generator = torch.Generator().manual_seed(0)
    dense, found = (torch.randn(300, 4, generator=generator).mul(2).log_softmax(1) for _ in range(2))
    found = (0.6 * dense + 0.4 * found).log_softmax(1)
    targets = torch.randint(4, (300,), generator=generator)
    for known, right in ((targets, targets), (None, dense.argmax(1))):
        threshold = QualityEvaluator(dense, known).confidence(found)
        assert threshold is not None
        assert threshold.reference == ("dense" if known is None else "labels")
        sure = found.double().exp().amax(1) >= threshold.threshold
        assert float(sure[found.argmax(1) == right].double().mean()) == pytest.approx(threshold.right, abs=1e-4)
        assert float(sure[found.argmax(1) != right].double().mean()) == pytest.approx(threshold.wrong, abs=1e-4)
    assert QualityEvaluator(dense).confidence(dense) is None  # nothing of it is wrong


def test_embeddings_are_compared_by_cosine_and_neighbours() -> None:
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(40, 6, generator=generator)
    found = dense + 0.5 * torch.randn(40, 6, generator=generator)
    quality = embedding_quality(dense, found)
    assert quality is not None

    def nearest(rows: np.ndarray) -> list[list[int]]:
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        others = [[other for other in range(40) if other != place] for place in range(40)]
        return [sorted(others[place], key=lambda other: -unit[place] @ unit[other])[:10] for place in range(40)]

    one, other = dense.double().numpy(), found.double().numpy()
    cosine = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    pairs = list(zip(nearest(one), nearest(other), strict=True))
    assert quality.cosine == pytest.approx(cosine.mean(), abs=1e-5)
    assert quality.nearest == pytest.approx(100 * np.mean([a[0] == b[0] for a, b in pairs]))
    assert quality.nearest10 == pytest.approx(10 * np.mean([len(set(a) & set(b)) for a, b in pairs]))
    assert embedding_quality(dense, dense) == type(quality)(1.0, 100.0, 100.0)
    assert embedding_quality(dense, torch.empty(40, 0)) is None
    assert embedding_quality(dense[:10], found[:10]) is None


def test_without_classes_the_nearest_image_is_an_answer() -> None:
    """Four points on a circle; the model moves the third from the fourth to the second."""
    angles = {"dense": (0.0, 0.2, 1.0, 1.1), "found": (0.0, 0.2, 0.5, 1.1)}
    dense, found = (torch.tensor([[math.cos(a), math.sin(a)] for a in row]) for row in angles.values())
    logs_of = [rows.log_softmax(-1) for rows in (dense, found)]
    evaluate = QualityEvaluator(logs_of[0], None, dense)
    quality = evaluate(logs_of[1], found)
    assert quality.agreement.value == 75  # the third finds the second now, and the fourth the third as before
    lost = [0, 0, math.cos(0.8) - math.cos(0.1), 0]
    assert quality.change.value == pytest.approx(100 * sum(lost) / 4, abs=1e-5)
    assert (quality.top1, quality.change) == (None, quality.expected)
    assert evaluate.confidence(logs_of[1]) is None
    assert evaluate(logs_of[0], 3 * dense).change.low == 0  # lengths do not matter
