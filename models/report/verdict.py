"""Describes the result of a run, in words that need no knowledge of compression."""

from collections.abc import Iterator
from dataclasses import dataclass

from .document import RunReport, Totals
from .frontier import Frontier
from .terms import accuracy_change, compact, counted, percent, points, sampling_error, share, three_digits

GOOD_POINTS, FAIR_POINTS = 1.0, 5.0
"""A compressed model that loses up to so many points of top-1 is called as accurate, or a little less so."""
GOOD_AGREEMENT, FAIR_AGREEMENT = 98.0, 90.0
"""The limits without labels: percent of answers that equal the dense model's."""

SEARCH_CHOSE = (
    "the held-out images chose among the models: figures on them are a little better than on others; measure with "
    "images of your own (milkweed evaluate)"
)


@dataclass(frozen=True)
class Verdict:
    """A run's outcome.

    Args:
        level: "good", "fair" or "poor" for what a compression did to accuracy; "open" where that is not known.
        headline: the outcome in a few words.
        sentence: its quality and its costs, with figures.
    """

    level: str
    headline: str
    sentence: str


def verdict(report: RunReport) -> Verdict:
    """The outcome of a run, as the page and the terminal show it."""
    level, headline = _compressed(report) if report.kind == "compress" else _trained(report)
    sentences = [_quality(report), _costs(report)]
    return Verdict(level, headline, " ".join(sentence for sentence in sentences if sentence))


def doubts(frontier: Frontier) -> list[str]:
    """The warnings about differences that so many images cannot show."""
    chosen, images = frontier.chosen.quality, counted(frontier.images, "image")
    expected, change = chosen.expected is not None, chosen.change
    labelled = expected or chosen.top1 is not None
    warnings = [SEARCH_CHOSE]
    if change.value < -(FAIR_POINTS if labelled else 100 - FAIR_AGREEMENT):
        lost = f"{-change.value:.1f}"
        what = f"is {lost} points less accurate than" if labelled else f"differs on {lost} % of images from"
        warnings.insert(0, f"what meets the target {what} the dense model: ask for less before it serves anyone")
    if chosen.agreement.low >= 100:
        warnings.append(
            f"{images} all got the dense model's answer, so that the interval has no width: up to "
            f"{min(100.0, 300 / frontier.images):.1f} % of others may still get another answer (rule of three)"
        )
    elif labelled:
        ends = f"{points(change.low)} and {points(change.high)} points"
        warnings.append(
            f"by {images} the chosen model's {'expected ' if expected else ''}change of top-1 lies between {ends} "
            "(95 %): more would narrow it"
        )
    else:
        ends = f"{chosen.agreement.low:.1f} and {chosen.agreement.high:.1f} %"
        warnings.append(f"by {images} between {ends} of answers stay the same (95 %): more would narrow it")
    return [
        *warnings,
        *_alike(frontier, "expected change of top-1" if expected else "top-1" if labelled else "agreement"),
    ]


def _alike(frontier: Frontier, measure: str) -> Iterator[str]:
    """The warning where intervals overlap."""
    others = [model for model in frontier.models if model.on_front and not model.chosen]
    alike = sum(model.quality.change.overlaps(frontier.chosen.quality.change) for model in others)
    if alike:
        yield (
            f"{counted(frontier.images, 'image')} cannot tell the chosen model from {alike} of the {len(others)} "
            f"others on the Pareto frontier by {measure}: their intervals overlap; KL, which needs fewer, puts them in "
            "order"
        )


def _compressed(report: RunReport) -> tuple[str, str]:
    before, after = report.before, report.after
    if before is not None and after is not None and before.top1 is not None and after.top1 is not None:
        lost = before.top1 - after.top1
        if lost <= GOOD_POINTS:
            return "good", "As accurate as the original" if lost > -GOOD_POINTS else "More accurate than the original"
        if lost <= FAIR_POINTS:
            return "fair", "A little less accurate than the original"
        unfit = after.top1 < before.top1 / 2
        return "poor", "Accuracy is lost: not fit to serve" if unfit else "Clearly less accurate than the original"
    if after is not None and after.agreement is not None:
        if after.agreement >= GOOD_AGREEMENT:
            return "good", "Answers as the original does"
        if after.agreement >= FAIR_AGREEMENT:
            return "fair", "Answers mostly as the original does"
        return "poor", "Often answers differently from the original"
    return "open", "Its accuracy was not measured"


def _trained(report: RunReport) -> tuple[str, str]:
    if report.after is None or report.after.top1 is None:
        return "open", "Trained, its accuracy not measured"
    return "open", f"{percent(report.after.top1)} of {counted(report.after.images, 'held-out image')} right"


def _costs(report: RunReport) -> str:
    before, after = report.totals_before, report.totals_after
    if after is None:
        return ""
    if before is None or (before.parameters, before.macs) == (after.parameters, after.macs):
        return (
            f"The model has {compact(after.parameters)} parameters and takes {compact(after.macs)} "
            f"multiply-accumulates for an image{_time(before, after)}."
        )
    macs = f"{share(after.macs, before.macs)} of the multiply-accumulates{_time(before, after)}."
    if before.parameters == after.parameters:
        return f"It has the same parameters ({compact(after.parameters)}) and does {macs}"
    verb, whose = ("keeps", "the") if report.kind == "compress" else ("has", "its dense twin's")
    return (
        f"It {verb} {share(after.parameters, before.parameters)} of {whose} parameters "
        f"({compact(after.parameters)} of {compact(before.parameters)}) and does {macs}"
    )


def _time(before: Totals | None, after: Totals) -> str:
    was, now = before.latency_ms if before else None, after.latency_ms
    if not was or not now or min(was, now) < 0:
        return ""
    figures = f"{three_digits(now)} ms instead of {three_digits(was)} ms"
    gain = was / now
    if abs(gain - 1) < 0.02:
        return f"; an image takes as long as before ({figures})"
    if gain > 1:
        return f"; its speedup is {gain:.2f} ({figures} for an image)"
    return f"; but it is slower: {figures} for an image"


def _quality(report: RunReport) -> str:
    before, after = report.before, report.after
    if after is None:
        return ""
    if after.top1 is None:
        if after.agreement is None:
            return ""
        sentence = f"It gives the original's answer on {percent(after.agreement)} of {counted(after.images, 'image')}"
        return f"{sentence} (± {sampling_error(after.agreement, after.images):.1f})."
    sentence = f"It is right on {percent(after.top1)} of {counted(after.images, 'image')}"
    if before is not None and before.top1 is not None:
        what = "where the original is right on" if report.kind == "compress" else "where it began with"
        sentence = f"{sentence}, {what} {percent(before.top1)}"
    change = accuracy_change(before, after)
    if change is None:
        return f"{sentence}, ± {sampling_error(after.top1, after.images):.1f} points by chance of the sample."
    difference, error = change
    if abs(difference) <= 2 * error:
        return f"{sentence}: a difference that so many images cannot distinguish from chance (± {error:.1f} points)."
    return f"{sentence}: {abs(difference):.1f} points {'less' if difference < 0 else 'more'} (± {error:.1f})."
