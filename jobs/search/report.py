"""The report of a search: what was done and measured, for report.html and report.json beside the bundle."""

from dataclasses import replace
from typing import Any

from ...models import BundleConfig
from ...models.bundle.provenance import library_versions
from ...models.report import DataUse, Frontier, Measured, RunReport, Totals
from ...models.report.frontier import SEARCH
from ...models.report.rows import model_totals
from ...models.report.verdict import doubts
from ..train_report import data_use
from .search import Search, SearchResult


def run_report(search: Search, result: SearchResult, config: BundleConfig, arguments: dict[str, Any]) -> RunReport:
    """Return the report of the bundle with this config, whose metrics have the search's record."""
    job, frontier = search.job, Frontier.from_dict(config.metrics[SEARCH])
    before, after = _totals(search, result, frontier)
    went_on = ", since it went on" if search.trials.resumed else ""
    return RunReport(
        kind="compress",
        arch=config.arch,
        version=config.version,
        input_version=search.baseline.config.version,
        arguments=arguments,
        command=job.command,
        measured_on=f"CPU, {search.evaluator.plan}, {job.batches[0]} at a time",
        versions=library_versions(),
        seconds_by_step={f"search{went_on}": round(result.seconds, 3)},
        data=_data(search),
        before=_measured(frontier, chosen=False),
        after=_measured(frontier, chosen=True),
        totals_before=before,
        totals_after=after,
        frontier=frontier,
        warnings=tuple(doubts(frontier)),
    )


def _data(search: Search) -> tuple[DataUse, ...]:
    calibration, held_out, folder = search.baseline.calibration, search.baseline.held_out, search.job.images
    return (
        data_use("calibration", folder, len(calibration), calibration.skipped),
        data_use("held out", folder, len(held_out), held_out.skipped),
    )


def _measured(frontier: Frontier, *, chosen: bool) -> Measured:
    """The quality of the chosen model, or of the dense one."""
    quality = frontier.chosen.quality
    if not chosen:
        return Measured(top1=quality.top1_of_dense, agreement=100.0, kl=0.0, images=quality.images)
    top1 = None if quality.top1 is None or quality.top1_of_dense is None else quality.top1_of_dense + quality.top1.value
    return Measured(top1=top1, agreement=quality.agreement.value, kl=quality.kl.value, images=quality.images)


def _totals(search: Search, result: SearchResult, frontier: Frontier) -> tuple[Totals, Totals]:
    """Costs of the dense model and of the chosen one; bytes are those of their bundles."""
    batch, size = search.job.batches[0], search.baseline.size
    _, dense = model_totals(search.baseline.model, size)
    _, chosen = model_totals(search.evaluator.model(result.chosen.recipe), size)
    chosen = replace(chosen, bytes=frontier.chosen.bytes, latency_ms=frontier.chosen.ms[batch])
    return replace(dense, bytes=search.baseline.config.bytes_on_disk, latency_ms=frontier.dense.ms[batch]), chosen
