"""What a result's bundle says of itself: whose threshold of confidence it has."""

from types import SimpleNamespace
from typing import Any

import pytest

from milkweed.compress.write import _confidence
from milkweed.models.confidence import ConfidenceThreshold


def known(reference: Any, threshold: float) -> ConfidenceThreshold:
    return ConfidenceThreshold(threshold=threshold, right=0.9, wrong=0.1, images=500, reference=reference)


BY_LABELS, BY_DENSE = known("labels", 0.7), known("dense", 0.4)
OF_DENSE = known("labels", 0.6)


@pytest.mark.parametrize(
    ("found", "dense", "expected"),
    [
        (BY_LABELS, OF_DENSE, BY_LABELS),
        (BY_LABELS, None, BY_LABELS),
        (BY_DENSE, None, BY_DENSE),
        (BY_DENSE, known("dense", 0.3), BY_DENSE),
        (BY_DENSE, OF_DENSE, OF_DENSE),
        (None, OF_DENSE, OF_DENSE),
        (None, None, None),
    ],
)
def test_a_threshold_by_labels_is_better_than_one_by_the_dense_model(
    found: ConfidenceThreshold | None, dense: ConfidenceThreshold | None, expected: ConfidenceThreshold | None
) -> None:
    search: Any = SimpleNamespace(baseline=SimpleNamespace(config=SimpleNamespace(confidence=dense)))
    result: Any = SimpleNamespace(models={"int8": SimpleNamespace(confidence=found)}, chosen="int8")
    assert _confidence(search, result) == expected
