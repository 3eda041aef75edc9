"""The outcome in words: what it says, and when it changes its mind."""

from dataclasses import replace

import pytest

from milkweed.models.report import Measured, RunReport, Totals
from milkweed.models.report.verdict import Verdict, verdict


def compressed(
    before: float | None, after: float | None, agreement: float | None = None, images: int = 10_000
) -> RunReport:
    first, second = Measured(top1=before, images=images), Measured(top1=after, agreement=agreement, images=images)
    return RunReport(kind="compress", arch="vit", version="0", before=first, after=second)


def test_the_whole_sentence(full: RunReport) -> None:
    assert verdict(full) == Verdict(
        "poor",
        "Clearly less accurate than the original",
        "It is right on 74.4 % of 250 images, where the original is right on 81.2 %: 6.8 points less (± 2.5). "
        "It keeps 65.0 % of the parameters (3.72 M of 5.72 M) and does 65.0 % of the multiply-accumulates; it is "
        "1.40 times as fast (13.0 ms instead of 18.2 ms for an image).",
    )


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
    assert few.endswith(": a difference that so many images cannot tell from chance (± 8.4 points).")
    assert verdict(compressed(80.0, 74.0)).sentence == (
        "It is right on 74.0 % of 10,000 images, where the original is right on 80.0 %: 6.0 points less (± 0.6)."
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [(10.0, 5.0, "2.00 times as fast"), (10.0, 12.5, "but it is slower"), (10.0, 10.1, "takes as long as before")],
)
def test_latency(before: float, after: float, words: str) -> None:
    first = Totals(parameters=100, macs=200, bytes=400, latency_ms=before)
    second = Totals(parameters=50, macs=100, bytes=200, latency_ms=after)
    sentence = verdict(replace(compressed(80.0, 80.0), totals_before=first, totals_after=second)).sentence
    assert "It keeps 50.0 % of the parameters (50 of 100) and does 50.0 % of the multiply-accumulates; " in sentence
    assert words in sentence


def test_training(bare: RunReport) -> None:
    assert verdict(bare) == Verdict("open", "Trained, its accuracy not measured", "")
    totals = Totals(parameters=600_000, macs=48_900_000, bytes=2_400_000)
    measured = replace(bare, after=Measured(top1=84.27, images=10_000), totals_after=totals)
    assert verdict(measured) == Verdict(
        "open",
        "84.3 % of 10,000 held-out images right",
        "It is right on 84.3 % of 10,000 images, ± 0.4 points by chance of the sample. "
        "The model has 600 k parameters and takes 48.9 M multiply-accumulates for an image.",
    )
    twin = replace(measured, totals_before=Totals(parameters=800_000, macs=97_800_000, bytes=1))
    assert "It has 75.0 % of its dense twin's parameters (600 k of 800 k) and does 50.0 %" in verdict(twin).sentence
    begun = replace(twin, before=Measured(top1=14.0, images=10_000))
    assert "where it began with 14.0 %: 70.3 points more" in verdict(begun).sentence
