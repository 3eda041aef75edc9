"""Renders a report's page, one self-contained HTML file without scripts. Only this module imports jinja2."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import terms
from .charts import page_charts
from .document import RunReport
from .drawing import require
from .frontier import ConfidenceInterval, Frontier
from .frontier_chart import frontier_charts
from .terms import compact, optional, percent, points, sampling_error, size, three_digits
from .verdict import verdict

MAX_SKIPPED = 50
"""Skipped images that the page names; report.json has all."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        spell: writes a figure.
        now, was: the members of a row that have the figure, and what it was before.
    """

    title: str
    spell: Callable[[Any], str]
    now: str
    was: str = ""

    def cell(self, row: Any) -> tuple[str, str]:
        """What the figure was, where that is known and another, and what it is."""
        was, now = getattr(row, self.was, None), getattr(row, self.now)
        text = self.spell(now)
        return "" if was in (None, now) else terms.before_arrow(self.spell(was), text), text


_TABLES = {
    "layers": (
        Column("weights", compact, "weights", "dense_weights"),
        Column("MACs", compact, "macs_after", "macs_before"),
        Column("bytes", size, "bytes_after", "bytes_before"),
        Column("error", optional, "error"),
        Column("why", lambda reason: reason or terms.MISSING, "reason"),
    ),
    "data": (
        Column("folder", str, "folder"),
        Column("images", "{:,}".format, "images"),
        Column("skipped", lambda skipped: f"{len(skipped):,}" if skipped else "none", "skipped"),
    ),
    "skipped": (Column("code", str, "code"), Column("because", str, "message")),
}


@dataclass(frozen=True)
class FigureTile:
    """One figure of the whole model.

    Args:
        was: what it was before, "" where that is not known.
        share: of what it was, 0..1 and more; drawn as a bar.
    """

    name: str
    now: str
    was: str = ""
    note: str = ""
    share: float | None = None


def render_page(report: RunReport) -> str:
    """The page's text.

    Raises:
        ImportError: matplotlib or jinja2 is not installed.
    """
    jinja2 = require("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
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
        panels=frontier_charts(report.frontier) if report.frontier else [],
        models=_models(report.frontier) if report.frontier else [],
        columns=_columns,
        kept=terms.kept_dense(report.layers),
        arguments=_flat(report.arguments),
        max_skipped=MAX_SKIPPED,
    )
    return text


def _columns(table: str, rows: Sequence[Any]) -> list[Column]:
    """The columns of a table; those without figures are left out."""
    return [column for column in _TABLES[table] if any(getattr(row, column.now) not in (None, "") for row in rows)]


def _models(frontier: Frontier) -> list[list[str]]:
    """The table of a search's models; its first row names the columns."""
    batches = (f"ms, batch {batch}" for batch in frontier.batches)
    rows = [
        [
            *batches,
            "speedup" + (", over bfloat16" if frontier.peer else ""),
            "KL",
            "top-1 agreement, %",
            "expected change of top-1",
            "counted",
            "size",
        ]
    ]
    for model in frontier.models:
        quality = model.quality
        times = (three_digits(ms) for ms in model.ms.values())
        changes = (
            terms.MISSING if change is None else _interval(change, points)
            for change in (quality.expected, quality.top1)
        )
        kl, agreement = _interval(quality.kl, three_digits), _interval(quality.agreement, "{:.1f}".format)
        speed = f"{model.speedup:.2f}×" + (f", {frontier.over_peer(model):.2f}×" if frontier.peer else "")
        rows.append([*times, speed, kl, agreement, *changes, size(model.bytes)])
    return rows


def _interval(interval: ConfidenceInterval, spell: Callable[[float], str]) -> str:
    return f"{spell(interval.value)} [{spell(interval.low)}, {spell(interval.high)}]"


def _quality_tiles(report: RunReport) -> Iterator[FigureTile]:
    before, after = report.before, report.after
    if after is None:
        return
    change = terms.accuracy_change(before, after)
    for name, attribute in (("Top-1 accuracy", "top1"), ("Top-5 accuracy", "top5")):
        was, now = getattr(before, attribute, None), getattr(after, attribute)
        if now is not None:
            error = terms.chance(now, after.images)
            changed = f" (± {change[1]:.1f})" if change and attribute == "top1" else ""
            note = error if was is None else f"{terms.points(now - was)} points{changed}; {error}"
            yield FigureTile(name, percent(now), "" if was is None else percent(was), note)
    if after.agreement is not None:
        error = f"± {sampling_error(after.agreement, after.images):.1f}"
        yield FigureTile("Agreement", percent(after.agreement), note=f"same answer as the dense model, {error}")
    if after.kl is not None:
        yield FigureTile("KL", optional(after.kl), note="from the dense model's probabilities, nats; 0 is equal")


def _cost_tiles(report: RunReport) -> Iterator[FigureTile]:
    kinds: list[tuple[str, str, Callable[[float], str]]] = [
        ("Parameters", "parameters", compact),
        ("MACs an image", "macs", compact),
        ("Size", "bytes", size),
        ("Latency", "latency_ms", lambda ms: f"{terms.three_digits(ms)} ms"),
    ]
    for name, attribute, spell in kinds:
        was, now = (getattr(totals, attribute, None) for totals in (report.totals_before, report.totals_after))
        if now is not None and was and was != now:
            yield FigureTile(name, spell(now), spell(was), f"{terms.share(now, was)} of dense", now / was)
        elif now is not None:
            yield FigureTile(name, spell(now))


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
