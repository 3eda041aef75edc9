"""A bundle's report in the terminal: the outcome, the layers, the curve of candidates, the course of training."""

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ..errors import one_line
from ..output import megabytes, print_fields, print_table

if TYPE_CHECKING:
    from ...models.report import CurvePoint, Frontier, LayerRow, RunReport
    from ...models.report.frontier import ConfidenceInterval

CURVE_WIDTH, CURVE_HEIGHT, SPARK_WIDTH, BAR_WIDTH = 64, 14, 40, 8
"""Characters that the drawings take."""
_SPARKS = "▁▂▃▄▅▆▇█"
_PLAIN = str.maketrans({"−": "-", "±": "+-", "–": "-", "→": "->", "µ": "u", "·": ".", "●": "@", "│": "|", "└": "+"})
_PLAIN |= str.maketrans({"─": "-", "█": "#", **dict(zip(_SPARKS[:-1], "_.,-=+*", strict=True))})


def print_report(report: "RunReport") -> None:
    """Print what report.html shows, as far as characters can."""
    print("\nreport")
    print_fields({f"  {_text(name)}": _text(value) for name, value in _outcome(report).items()})
    if report.layers:
        print()
        _print_layers(report.layers)
    if report.curve:
        print()
        _print_curve(report)


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


def curve_lines(report: "RunReport") -> list[str]:
    """Candidates drawn in characters: quality, or KL where there is no other, against their parameters."""
    from ...models.report.charts import MEASURES, measured, measures

    names = measures(report.curve)
    if not names:
        return []
    points = measured(report.curve, names[0])
    x = _scale([100 * candidate.share for candidate, _ in points], CURVE_WIDTH - 1)
    y = _scale([value for _, value in points], CURVE_HEIGHT - 1)
    grid = [[" "] * CURVE_WIDTH for _ in range(CURVE_HEIGHT)]
    # The chosen one last, so that it is on top.
    for candidate, value in sorted(points, key=lambda pair: pair[0].chosen):
        grid[CURVE_HEIGHT - 1 - y(value)][x(100 * candidate.share)] = "●" if candidate.chosen else "·"
    values, shares = [value for _, value in points], [100 * candidate.share for candidate, _ in points]
    ticks = {0: max(values), CURVE_HEIGHT - 1: min(values)}
    lines = [f"{MEASURES[names[0]]} (● chosen)"]
    lines += [f"{_number(ticks.get(row)):>8} │{''.join(cells).rstrip()}" for row, cells in enumerate(grid)]
    low, high = f"{min(shares):.1f}", f"{max(shares):.1f} % of dense"
    lines.append(f"{'':>8} └{'─' * CURVE_WIDTH}")
    lines.append(f"{'':>10}{low}{'parameters':^{CURVE_WIDTH - len(low) - len(high)}}{high}")
    return lines


def sparkline(values: Sequence[float]) -> str:
    """A curve one line high, at most SPARK_WIDTH wide: means of equal stretches."""
    count = min(SPARK_WIDTH, len(values))
    edges = [place * len(values) // count for place in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    level = _scale(means, len(_SPARKS) - 1)
    return "".join(_SPARKS[level(mean)] for mean in means)


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
    fields = {}
    for name, title in (("loss", "loss"), ("top1", "held-out top-1"), ("kl", "held-out KL")):
        figures = [row[name] for row in report.history if name in row]
        values = [value for value in figures if isinstance(value, float | int)]
        if len(values) > 1:
            fields[title] = f"{_number(values[0])} → {_number(values[-1])} {sparkline(values)}"
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
    if any(row.latency_after_us is not None for row in rows):
        columns.append((" µs", lambda row: _change(row.latency_before_us, row.latency_after_us, optional)))
    if worst:
        columns.append((" error", lambda row: optional(row.error)))
        columns.append(("", lambda row: "█" * round(BAR_WIDTH * (row.error or 0) / worst)))
    if any(row.sensitivity is not None for row in rows):
        columns.append((" sensitivity", lambda row: optional(row.sensitivity)))
    print_table(
        [_text(name) if name else "" for name, _ in columns],
        [[_text(cell(row)) for _, cell in columns] for row in rows],
    )
    for reason, names in kept_dense(rows).items():
        print(_text(f"kept dense: {', '.join(names)}: {reason}"))


def _print_curve(report: "RunReport") -> None:
    from ...models.report.charts import best_at_size, measures
    from ...models.report.terms import candidate_text

    for line in curve_lines(report):
        print(_drawable(line))
    best = best_at_size(report.curve, names[0]) if (names := measures(report.curve)) else []
    chosen = [candidate for candidate in report.curve if candidate.chosen]
    shown: list[CurvePoint] = [*chosen, *(candidate for candidate in best if not candidate.chosen)]
    print(f"\n{len(report.curve)} candidates tried; the chosen, and the best at their size (--json has all)")
    for candidate in shown:
        print(_text(f"  {'●' if candidate.chosen else '·'} {candidate_text(candidate)}"))


def _change(before: float | None, after: float | None, spell: Callable[..., str]) -> str:
    from ...models.report.terms import before_arrow

    if before is None or before == after:
        return spell(after)
    return f"{before_arrow(spell(before), spell(after))} → {spell(after)}"


def _scale(values: Sequence[float], top: int) -> Callable[[float], int]:
    """A line from the least of `values` at 0 to the greatest at `top`; to the middle where all are equal."""
    low, high = min(values), max(values)
    return lambda value: round(top * (value - low) / (high - low)) if high > low else top // 2


def _number(value: float | None) -> str:
    from ...models.report.terms import three_digits

    return "" if value is None else three_digits(value)


def _text(text: str) -> str:
    """Data from a file, safe for a terminal and in characters that it has."""
    return _drawable(text[: len(text) - len(text.lstrip())] + one_line(text))


def _drawable(text: str) -> str:
    """`text` in the characters of stdout's encoding: a report must not fail for an arrow."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode()
    return text
