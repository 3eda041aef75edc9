"""Renders a report's page, one self-contained HTML file without scripts. Only this module imports jinja2."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from . import terms
from .charts import measured, page_charts
from .document import Candidate, LayerRow, Measured, RunReport
from .drawing import require
from .terms import compact, optional, percent, size
from .verdict import verdict

MAX_SKIPPED = 50
"""Skipped images that the page names; report.json has all."""


@dataclass(frozen=True)
class Figure:
    """One figure of a tile or a table, as text.

    Args:
        after, before: the figure, and what it was where that is known and another.
        name, note: of a tile: its heading, and what the figure means.
        bar: 0..1, how long the bar below it is; None draws none.
    """

    after: str
    before: str = ""
    name: str = ""
    note: str = ""
    bar: float | None = None


def render_page(report: RunReport) -> str:
    """The page's text.

    Raises:
        ImportError: matplotlib or jinja2 is not installed.
    """
    jinja2 = require("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (files(__package__) / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"counted": terms.counted, "duration": terms.duration, "structure": terms.structure_text}
    text: str = environment.get_template("page.html.j2").render(
        report=report,
        verdict=verdict(report),
        tiles=[*_quality_tiles(report), *_cost_tiles(report)],
        charts=page_charts(report),
        candidates=_candidates(report.curve),
        columns=_layer_columns(report.layers),
        sums=_sums(report.layers) if report.layers else None,
        kept=terms.kept_dense(report.layers),
        arguments=_flat(report.arguments),
        max_skipped=MAX_SKIPPED,
        missing=terms.MISSING,
    )
    return text


def _quality_tiles(report: RunReport) -> list[Figure]:
    before, after = report.before, report.after
    if after is None:
        return []
    tiles = []
    if after.top1 is not None:
        change = terms.accuracy_change(before, after)
        chance = "" if change is None else f" (± {change[1]:.1f})"
        tiles.append(_accuracy_tile("Top-1 accuracy", after.top1, before.top1 if before else None, after, chance))
    if after.top5 is not None:
        tiles.append(_accuracy_tile("Top-5 accuracy", after.top5, before.top5 if before else None, after))
    if after.agreement is not None:
        error = terms.sampling_error(after.agreement, after.images)
        note = f"same answer as the dense model{'' if error is None else f', ± {error:.1f}'}"
        tiles.append(Figure(percent(after.agreement), name="Agreement", note=note))
    if after.kl is not None:
        note = "from the dense model's probabilities, nats; 0 is equal"
        tiles.append(Figure(optional(after.kl), name="KL", note=note))
    return tiles


def _accuracy_tile(name: str, value: float, before: float | None, after: Measured, chance: str = "") -> Figure:
    notes = [] if before is None else [f"{terms.points(value - before)} points{chance}"]
    error = terms.sampling_error(value, after.images)
    if error is not None:
        notes.append(f"± {error:.1f} on {terms.counted(after.images, 'image')}")
    was = "" if before is None else percent(before)
    return Figure(percent(value), was, name, "; ".join(notes))


def _cost_tiles(report: RunReport) -> list[Figure]:
    after = report.totals_after
    if after is None:
        return []
    kinds: list[tuple[str, str, Callable[[float], str]]] = [
        ("Parameters", "parameters", compact),
        ("MACs an image", "macs", compact),
        ("Weights", "bytes", size),
        ("Latency", "latency_ms", lambda ms: f"{terms.three_digits(ms)} ms"),
    ]
    tiles = []
    for name, attribute, spell in kinds:
        was: float | None = getattr(report.totals_before, attribute, None)
        value: float | None = getattr(after, attribute)
        if value is not None and (not was or was == value):
            tiles.append(Figure(spell(value), name=name))
        elif value is not None and was is not None:
            tiles.append(Figure(spell(value), spell(was), name, f"{terms.share(value, was)} of dense", value / was))
    return tiles


def _candidates(curve: Sequence[Candidate]) -> tuple[list[str], list[tuple[Candidate, list[str]]]]:
    """The headings of the table of candidates, and its rows; columns without figures are left out."""
    kinds: list[tuple[str, str, Callable[[float | None], str]]] = [
        ("top-1", "top1", percent),
        ("agreement", "agreement", percent),
        ("KL", "kl", optional),
    ]
    kinds = [kind for kind in kinds if measured(curve, kind[1])]
    rows = [
        (
            candidate,
            [compact(candidate.parameters), percent(100 * candidate.share)]
            + [spell(getattr(candidate, name)) for _, name, spell in kinds],
        )
        for candidate in sorted(curve, key=lambda candidate: candidate.share)
    ]
    return ["parameters", "of dense", *(title for title, _, _ in kinds)], rows


def _layer_columns(rows: Sequence[LayerRow]) -> dict[str, Callable[[LayerRow], Figure]]:
    """The columns of the table of layers, with what makes a cell of each; those without figures are left out."""
    columns: dict[str, Callable[[LayerRow], Figure]] = {
        "weights": lambda row: _change(row.dense_weights, row.weights, compact, bar=True),
        "MACs": lambda row: _change(row.macs_before, row.macs_after, compact),
        "bytes": lambda row: _change(row.bytes_before, row.bytes_after, size),
    }
    if any(row.latency_before_us is not None or row.latency_after_us is not None for row in rows):
        columns["latency, µs"] = lambda row: _change(row.latency_before_us, row.latency_after_us, optional)
    errors = [row.error for row in rows if row.error is not None]
    if errors:
        largest = max(errors)
        columns["error"] = lambda row: Figure(
            optional(row.error), bar=row.error / largest if row.error is not None and largest else None
        )
    if any(row.sensitivity is not None for row in rows):
        columns["sensitivity"] = lambda row: Figure(optional(row.sensitivity))
    return columns


def _change(before: float | None, after: float | None, spell: Callable[[Any], str], bar: bool = False) -> Figure:
    share = (after or 0) / before if before and bar else None
    if before is None or before == after:
        return Figure(spell(after), bar=share)
    return Figure(spell(after), terms.before_arrow(spell(before), spell(after)), bar=share)


def _sums(rows: Sequence[LayerRow]) -> LayerRow:
    """All layers as one row; a latency is None where a layer lacks it."""
    sums: dict[str, Any] = {"error": None, "sensitivity": None}
    for pair in (("dense_weights", "weights"), ("macs_before", "macs_after"), ("bytes_before", "bytes_after")):
        sums |= {name: sum(getattr(row, name) for row in rows) for name in pair}
    for name in ("latency_before_us", "latency_after_us"):
        values = [getattr(row, name) for row in rows]
        sums[name] = None if None in values else sum(values)
    return replace(rows[0], **sums)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested arguments as `a.b` names and values a person can read."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            items = value if isinstance(value, list | tuple) else [value]
            flat[f"{prefix}{name}"] = ", ".join(map(_spelled, items))
    return flat


def _spelled(value: Any) -> str:
    words = {None: "not given", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
