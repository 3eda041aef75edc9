"""The report of a search: what was done and found, for report.html and report.json beside the bundle."""

from dataclasses import replace
from typing import Any

from ...models import BundleConfig
from ...models.bundle.provenance import library_versions
from ...models.report import DataUse, Frontier, Measured, RunReport, Totals
from ...models.report.frontier import SEARCH
from ...models.report.rows import model_totals
from ...models.report.verdict import doubts
from ..train_report import data_use
from .search import Found, Search


def run_report(search: Search, found: Found, config: BundleConfig, arguments: dict[str, Any]) -> RunReport:
    """Return the report of the bundle with this config, whose metrics have the search's record."""
    job, frontier = search.job, Frontier.from_dict(config.metrics[SEARCH])
    before, after = _totals(search, found, frontier)
    went_on = ", since it went on" if search.trials.resumed else ""
    return RunReport(
        kind="compress",
        arch=config.arch,
        version=config.version,
        input_version=search.subject.config.version,
        arguments=arguments,
        command=job.command,
        measured_on=f"CPU, {search.runs.plan}, {job.batches[0]} at a time",
        versions=library_versions(),
        seconds_by_step={f"search{went_on}": round(found.seconds, 3)},
        data=_data(search),
        before=_measured(frontier, chosen=False),
        after=_measured(frontier, chosen=True),
        totals_before=before,
        totals_after=after,
        frontier=frontier,
        warnings=tuple(doubts(frontier)),
    )


def _data(search: Search) -> tuple[DataUse, ...]:
    fit, judge, folder = search.subject.fit, search.subject.judge, search.job.images
    return (
        data_use("calibration", folder, len(fit), fit.skipped),
        data_use("held out", folder, len(judge), judge.skipped),
    )


def _measured(frontier: Frontier, *, chosen: bool) -> Measured:
    """The quality of the chosen model, or of the dense one."""
    found = frontier.chosen.quality
    if not chosen:
        return Measured(top1=found.top1_of_dense, agreement=100.0, kl=0.0, images=found.images)
    top1 = None if found.top1 is None or found.top1_of_dense is None else found.top1_of_dense + found.top1.value
    return Measured(top1=top1, agreement=found.agreement.value, kl=found.kl.value, images=found.images)


def _totals(search: Search, found: Found, frontier: Frontier) -> tuple[Totals, Totals]:
    """Costs of the dense model and of the chosen one, whose bytes are those of its file."""
    batch, size = search.job.batches[0], search.subject.size
    _, dense = model_totals(search.subject.model, size)
    _, chosen = model_totals(search.runs.model(found.chosen.levers), size)
    chosen = replace(chosen, bytes=frontier.chosen.bytes, latency_ms=frontier.chosen.ms[batch])
    return replace(dense, latency_ms=frontier.dense.ms[batch]), chosen
