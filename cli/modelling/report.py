"""A bundle's report in the terminal: the outcome, the layers, the models of a search, the course of training."""

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ..errors import one_line
from ..output import megabytes, print_fields, print_table

if TYPE_CHECKING:
    from ...models.report import Frontier, LayerRow, RunReport
    from ...models.report.frontier import ConfidenceInterval

SPARK_WIDTH, BAR_WIDTH = 40, 8
"""Characters that the drawings take."""
_SPARKS = "▁▂▃▄▅▆▇█"
_PLAIN = str.maketrans({"−": "-", "±": "+-", "–": "-", "→": "->", **dict(zip(_SPARKS, "_.,-=+*#", strict=True))})


def print_report(report: "RunReport") -> None:
    """Print what report.html shows, as far as characters can."""
    print("\nreport")
    print_fields({f"  {_text(name)}": _text(value) for name, value in _outcome(report).items()})
    if report.layers:
        print()
        _print_layers(report.layers)


def print_search(frontier: "Frontier") -> None:
    """Print what the search says of the chosen model, and the models of the Pareto frontier."""
    from ...models.report.terms import counted

    chosen, dense, peer = frontier.chosen, frontier.dense, frontier.peer
    speed = f"speedup {chosen.speedup:.2f} over dense in {_text(dense.computed_by)}"
    if peer is not None:
        speed += f" ({frontier.over_peer(chosen):.2f} over {_text(peer.computed_by)})"
    quality, agreement = chosen.quality, chosen.quality.agreement
    same = f"top-1 agreement {agreement.value:.1f} % [{agreement.low:.1f}, {agreement.high:.1f}]"
    top1 = ""
    if quality.top1 is not None and quality.top1_of_dense is not None:
        top1 = f", top-1 {quality.top1_of_dense + quality.top1.value:.1f} % (dense {quality.top1_of_dense:.1f} %)"
    machine = f", on {_text(frontier.measured_on)}" if frontier.measured_on else ""
    print_fields(
        {
            "  chosen": _text(chosen.name),
            "  result": f"{speed}, {same}{top1}",
            **({} if quality.embedding is None else {"  embedding": quality.embedding}),
            "  judged on": f"{counted(frontier.images, 'held-out image')}{machine}; [95 %]",
        }
    )
    print()
    print_frontier(frontier, frontier_only=True)
    if left := sum(not (model.on_front or model.chosen) for model in frontier.models):
        print(f"{counted(left, 'other model')} measured that a faster one beats (--json has all, --plot draws them)")


def print_frontier(frontier: "Frontier", *, frontier_only: bool = False) -> None:
    """Print the models of a search, all or those of the Pareto frontier, the fastest first."""
    batches = (f" ms at {batch}" for batch in frontier.batches)
    rows = []
    for model in frontier.models:
        if frontier_only and not (model.on_front or model.chosen):
            continue
        quality = model.quality
        rows.append(
            (
                "->" if model.chosen else "*" if model.on_front and not frontier_only else "",
                _text(model.name),
                _text(model.computed_by),
                *(f"{ms:.2f}" for ms in model.ms.values()),
                f"{model.speedup:.2f}x" + (f" ({frontier.over_peer(model):.2f}x)" if frontier.peer else ""),
                f"{quality.kl.value:.4f}",
                f"{quality.agreement.value:.1f} %",
                _change_of_top1(quality.expected),
                _change_of_top1(quality.top1),
                megabytes(model.bytes),
            )
        )
    speedup = " speedup (bfloat16)" if frontier.peer else " speedup"
    print_table(
        ("", "model", "computed by", *batches, speedup, " KL", " agreement", " expected", " counted", " size"), rows
    )


def _change_of_top1(change: "ConfidenceInterval | None") -> str:
    """A change of top-1 in points, expected or counted, with its interval."""
    return "-" if change is None else f"{change.value:+.1f} [{change.low:+.1f}, {change.high:+.1f}]"


def sparkline(values: Sequence[float]) -> str:
    """A curve one line high, at most SPARK_WIDTH wide: means of equal stretches."""
    count = min(SPARK_WIDTH, len(values))
    edges = [place * len(values) // count for place in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high, top = min(means), max(means), len(_SPARKS) - 1
    return "".join(_SPARKS[round(top * (mean - low) / (high - low)) if high > low else top // 2] for mean in means)


def _outcome(report: "RunReport") -> dict[str, str]:
    from ...models.report.terms import compact, duration, size, three_digits
    from ...models.report.verdict import verdict

    result = verdict(report)
    fields = {"outcome": f"{result.headline}. {result.sentence}".strip(), **_quality(report)}
    before, after = report.totals_before, report.totals_after
    if after is not None:
        for name, attribute, spell in (
            ("parameters", "parameters", compact),
            ("MACs an image", "macs", compact),
            ("size", "bytes", size),
        ):
            fields[name] = _change(getattr(before, attribute, None), getattr(after, attribute), spell)
        if after.latency_ms is not None:
            was = before.latency_ms if before is not None else None
            fields["latency"] = _change(was, after.latency_ms, lambda ms: f"{three_digits(ms)} ms")
            fields["latency"] += f" ({report.measured_on})" if report.measured_on else ""
    fields |= _course(report)
    for number, use in enumerate(report.data, 1):
        skipped = f", {len(use.skipped)} skipped (named in report.json)" if use.skipped else ""
        fields[f"data {number}"] = f"{use.role}: {use.images:,} images of {use.folder}{skipped}"
    if report.seconds_by_step:
        steps = report.seconds_by_step.items()
        fields["time"] = ", ".join(f"{name} {duration(seconds)}" for name, seconds in steps)
    fields |= {"command": report.command} if report.command else {}
    return {**fields, **{f"warning {number}": text for number, text in enumerate(report.warnings, 1)}}


def _quality(report: "RunReport") -> dict[str, str]:
    from ...models.report.terms import chance, percent, three_digits

    before, after = report.before, report.after
    if after is None:
        return {}
    fields = {}
    for name, attribute in (("top-1", "top1"), ("top-5", "top5"), ("agreement", "agreement")):
        value = getattr(after, attribute)
        if value is not None:
            was = getattr(before, attribute, None) if name != "agreement" else None
            fields[name] = f"{_change(was, value, percent)} {chance(value, after.images)}"
    if after.kl is not None:
        fields["KL"] = f"{three_digits(after.kl)} nats from the dense model"
    return fields


def _course(report: "RunReport") -> dict[str, str]:
    """The history as one line a figure: how it began, how it ended, and its shape."""
    from ...models.report.terms import three_digits

    fields = {}
    for name, title in (("loss", "loss"), ("top1", "held-out top-1")):
        values = [value for row in report.history if isinstance(value := row.get(name), float | int)]
        if len(values) > 1:
            fields[title] = f"{three_digits(values[0])} → {three_digits(values[-1])} {sparkline(values)}"
    return fields


def _print_layers(rows: Sequence["LayerRow"]) -> None:
    from ...models.report.terms import compact, kept_dense, optional, share, size, structure_text

    worst = max((row.error for row in rows if row.error is not None), default=0.0)
    columns: list[tuple[str, Callable[[LayerRow], str]]] = [
        ("layer", lambda row: row.name),
        ("structure", structure_text),
        (" weights", lambda row: compact(row.weights)),
        (" of dense", lambda row: share(row.weights, row.dense_weights)),
        (" MACs", lambda row: _change(row.macs_before, row.macs_after, compact)),
        (" bytes", lambda row: _change(row.bytes_before, row.bytes_after, size)),
    ]
    if worst:
        columns.append((" error", lambda row: optional(row.error)))
        columns.append(("", lambda row: "█" * round(BAR_WIDTH * (row.error or 0) / worst)))
    print_table([name for name, _ in columns], [[_text(cell(row)) for _, cell in columns] for row in rows])
    for reason, names in kept_dense(rows).items():
        print(_text(f"kept dense: {', '.join(names)}: {reason}"))


def _change(before: float | None, after: float | None, spell: Callable[..., str]) -> str:
    from ...models.report.terms import before_arrow

    if before is None or before == after:
        return spell(after)
    return f"{before_arrow(spell(before), spell(after))} → {spell(after)}"


def _text(text: str) -> str:
    """Data from a file, safe for a terminal and in the characters of its encoding: an arrow fails no report."""
    text = text[: len(text) - len(text.lstrip())] + one_line(text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode()
    return text
