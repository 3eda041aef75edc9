"""The threshold of confidence: against a search over every score, and what its record refuses."""

import numpy as np
import pytest

from milkweed.models import BundleError
from milkweed.models.confidence import MIN_ANSWERS, ConfidenceThreshold, find_threshold

RECORD = {"threshold": 0.5, "right": 0.9, "wrong": 0.2, "images": 100, "reference": "labels"}


@pytest.mark.parametrize("seed", range(5))
def test_no_other_threshold_tells_right_from_wrong_better(seed: int) -> None:
    generator = np.random.default_rng(seed)
    right = generator.random(400) < 0.8
    scores = np.where(right, generator.beta(6, 2, 400), generator.beta(3, 3, 400))

    found = find_threshold(scores, right, "labels")

    assert found is not None
    sure = scores >= found.threshold
    assert (found.right, found.wrong) == pytest.approx((sure[right].mean(), sure[~right].mean()), abs=1e-4)
    most = max((scores[right] >= score).mean() - (scores[~right] >= score).mean() for score in scores)
    assert found.right - found.wrong == pytest.approx(most, abs=0.006)  # scores within 1e-4 of each other are one
    assert (found.images, found.reference) == (400, "labels")


def test_one_threshold_parts_answers_that_can_be_parted() -> None:
    scores = np.array([0.3] * MIN_ANSWERS + [0.95] * 90)
    found = find_threshold(scores, scores > 0.5, "dense")
    assert found == ConfidenceThreshold(threshold=0.95, right=1.0, wrong=0.0, images=100, reference="dense")


@pytest.mark.parametrize("wrong", [0, MIN_ANSWERS - 1, 100 - MIN_ANSWERS + 1, 100])
def test_too_few_answers_of_a_kind_give_no_threshold(wrong: int) -> None:
    scores = np.linspace(0.1, 0.9, 100)
    assert find_threshold(scores, np.arange(100) >= wrong, "labels") is None


def test_confidence_that_tells_nothing_gives_no_threshold() -> None:
    assert find_threshold(np.full(100, 0.5), np.arange(100) < 50, "labels") is None
    assert find_threshold(np.linspace(0, 1, 100), np.arange(100) < 50, "labels") is None  # wrong ones are surer


def test_a_record_is_read_as_it_was_written() -> None:
    assert ConfidenceThreshold.from_dict(RECORD).to_dict() == RECORD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": 1.5}, r"threshold 1\.5 must be between 0 and 1"),
        ({"threshold": float("nan")}, "threshold nan must be"),
        ({"right": True}, "right True must be"),
        ({"wrong": "0.1"}, "wrong '0.1' must be"),
        ({"images": 0}, "images 0 must be a whole number above 0"),
        ({"reference": "me"}, "reference 'me' must be labels or dense"),
        ({"more": 1}, "members must be threshold, right, wrong, images, reference"),
    ],
)
def test_a_record_outside_its_limits_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(BundleError, match=f"confidence: {message}"):
        ConfidenceThreshold.from_dict({**RECORD, **change})
