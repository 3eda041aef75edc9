"""The page of a report: one self-contained HTML file without scripts. The one place that knows jinja2."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from . import spelling
from .charts import draw, history_chart, layer_chart, size_chart
from .document import LayerRow, RunReport, Totals
from .layer_names import kept_dense, structure_text
from .sampling import accuracy_change, sampling_error
from .verdict import verdict

MAX_SKIPPED = 50
"""Skipped images that the page names; report.json has all."""


@dataclass(frozen=True)
class Tile:
    """One figure in large letters: its name, before and after, what it means, and its share of before (0..1)."""

    name: str
    after: str
    before: str = ""
    note: str = ""
    share: float | None = None


def render_page(report: RunReport) -> str:
    """The page's text.

    Raises:
        ImportError: matplotlib or jinja2 is not installed.
    """
    jinja2 = _jinja()
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["before_arrow"] = spelling.before_arrow
    for name in ("compact", "duration", "optional", "percent", "points", "share", "size", "counted", "three_digits"):
        environment.filters[name] = environment.globals[name] = getattr(spelling, name)
    environment.filters["structure"] = structure_text
    text: str = environment.get_template("page.html.j2").render(_context(report))
    return text


def check_jinja() -> None:
    """Find out early whether pages can be made.

    Raises:
        ImportError: names what to install.
    """
    _jinja()


def _context(report: RunReport) -> dict[str, Any]:
    return {
        "report": report,
        "verdict": verdict(report),
        "tiles": [*_quality_tiles(report), *_cost_tiles(report.totals_before, report.totals_after)],
        "charts": {
            name: draw(name, chart, report)
            for name, chart in (("size", size_chart), ("layers", layer_chart), ("history", history_chart))
        },
        "totals": _layer_totals(report.layers),
        "kept": kept_dense(report.layers),
        "has": _columns(report),
        "largest_error": max((row.error for row in report.layers if row.error is not None), default=0.0),
        "arguments": _flat(report.arguments),
        "max_skipped": MAX_SKIPPED,
        "missing": spelling.MISSING,
    }


def _quality_tiles(report: RunReport) -> list[Tile]:
    before, after = report.before, report.after
    if after is None:
        return []
    tiles = []
    for name, value, was in (
        ("Top-1 accuracy", after.top1, before.top1 if before else None),
        ("Top-5 accuracy", after.top5, before.top5 if before else None),
    ):
        if value is None:
            continue
        error = sampling_error(value, after.images)
        notes = [f"± {error:.1f} on {spelling.counted(after.images, 'image')}"] if error is not None else []
        change = accuracy_change(before, after) if name.startswith("Top-1") else None
        if change is not None:
            notes.insert(0, f"{spelling.points(change[0])} points (± {change[1]:.1f})")
        elif was is not None:
            notes.insert(0, f"{spelling.points(value - was)} points")
        tiles.append(
            Tile(name, spelling.percent(value), spelling.percent(was) if was is not None else "", "; ".join(notes))
        )
    if after.agreement is not None:
        error = sampling_error(after.agreement, after.images)
        note = (
            f"same answer as the dense model, ± {error:.1f}" if error is not None else "same answer as the dense model"
        )
        tiles.append(Tile("Agreement", spelling.percent(after.agreement), "", note))
    if after.kl is not None:
        tiles.append(
            Tile("KL", spelling.three_digits(after.kl), "", "from the dense model's probabilities, nats; 0 is equal")
        )
    return tiles


def _cost_tiles(before: Totals | None, after: Totals | None) -> list[Tile]:
    if after is None:
        return []
    tiles = [
        _cost_tile("Parameters", before.parameters if before else None, after.parameters, spelling.compact),
        _cost_tile("MACs an image", before.macs if before else None, after.macs, spelling.compact),
        _cost_tile("Weights", before.bytes if before else None, after.bytes, spelling.size),
    ]
    if after.latency_ms is not None:
        latency = before.latency_ms if before else None
        tiles.append(_cost_tile("Latency", latency, after.latency_ms, lambda ms: f"{spelling.three_digits(ms)} ms"))
    return tiles


def _cost_tile(name: str, before: float | None, after: float, spell: Any) -> Tile:
    if before is None or before <= 0 or before == after:
        return Tile(name, spell(after))
    return Tile(name, spell(after), spell(before), f"{spelling.share(after, before)} of dense", after / before)


def _layer_totals(rows: tuple[LayerRow, ...]) -> dict[str, float | None]:
    """Sums of the columns; None where a layer lacks the figure."""
    names = ("dense_weights", "weights", "macs_before", "macs_after", "bytes_before", "bytes_after")
    sums: dict[str, float | None] = {name: sum(getattr(row, name) for row in rows) for name in names}
    for name in ("latency_before_us", "latency_after_us"):
        values = [getattr(row, name) for row in rows]
        sums[name] = None if None in values else sum(values)
    return sums


def _columns(report: RunReport) -> dict[str, bool]:
    """Which optional columns hold anything."""
    rows, curve = report.layers, report.curve
    return {
        "latency": any(row.latency_before_us is not None or row.latency_after_us is not None for row in rows),
        "error": any(row.error is not None for row in rows),
        "sensitivity": any(row.sensitivity is not None for row in rows),
        "reason": any(row.reason for row in rows),
        **{name: any(getattr(c, name) is not None for c in curve) for name in ("top1", "agreement", "kl")},
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested arguments as `a.b` names and values a person can read."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            flat[f"{prefix}{name}"] = ", ".join(map(_spelled, value))
        else:
            flat[f"{prefix}{name}"] = _spelled(value)
    return flat


def _spelled(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _template(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _jinja() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(f"reports need the package jinja2: pip install 'milkweed[train]' ({error})") from error
    return jinja2
