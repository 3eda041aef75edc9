"""The outcome in words: what it says, and when it changes its mind."""

import pytest

from milkweed.models.report import Measured, RunReport
from milkweed.models.report.verdict import verdict


def compressed(
    before: float | None, after: float | None, agreement: float | None = None, images: int = 10_000
) -> RunReport:
    first, second = Measured(top1=before, images=images), Measured(top1=after, agreement=agreement, images=images)
    return RunReport(kind="compress", arch="vit", version="0", before=first, after=second)


@pytest.mark.parametrize(
    ("before", "after", "agreement", "level", "headline"),
    [
        (81.0, 80.0, None, "good", "As accurate as the original"),
        (81.0, 82.5, None, "good", "More accurate than the original"),
        (81.0, 79.9, None, "fair", "A little less accurate than the original"),
        (81.0, 75.9, None, "poor", "Clearly less accurate than the original"),
        (81.0, 14.4, None, "poor", "Accuracy is lost: not fit to serve"),
        (None, None, 98.0, "good", "Answers as the original does"),
        (None, None, 90.0, "fair", "Answers mostly as the original does"),
        (None, None, 89.9, "poor", "Often answers differently from the original"),
        (None, None, None, "open", "Its accuracy was not measured"),
        (81.0, 74.0, 99.0, "poor", "Clearly less accurate than the original"),
    ],
)
def test_levels(before: float | None, after: float | None, agreement: float | None, level: str, headline: str) -> None:
    found = verdict(compressed(before, after, agreement))
    assert (found.level, found.headline) == (level, headline)


def test_chance_is_named_where_it_explains_the_difference() -> None:
    few = verdict(compressed(80.0, 74.0, images=50)).sentence
    assert few.endswith(": a difference that so many images cannot distinguish from chance (± 8.4 points).")
    assert verdict(compressed(80.0, 74.0)).sentence == (
        "It is right on 74.0 % of 10,000 images, where the original is right on 80.0 %: 6.0 points less (± 0.6)."
    )
