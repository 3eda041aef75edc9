"""Writes the bundle that a search chose, with a record and a report of all that was measured."""

import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from torch import nn

from ..inference.device import processor_name, usable_cores
from ..jobs.train_report import data_use
from ..models import BundleConfig
from ..models.accounting import layer_accounts
from ..models.bundle.provenance import library_versions, made_from
from ..models.bundle.strict_json import readable_json
from ..models.confidence import ConfidenceThreshold
from ..models.progress import SILENT, Progress
from ..models.report import (
    DataUse,
    Frontier,
    LayerRow,
    Measured,
    RunReport,
    Totals,
    check_report_packages,
    write_report,
)
from ..models.report.frontier import SEARCH, pareto_frontier
from ..models.report.rows import layer_rows, model_totals
from ..models.report.terms import counted
from ..models.report.verdict import doubts
from .job import CompressJob
from .measure import RECORD_BYTES
from .recipe import Recipe
from .search import Search, SearchResult
from .selection import speedup


def compress(job: CompressJob, progress: Progress = SILENT) -> tuple[SearchResult, BundleConfig]:
    """Search, and write the bundle `job.out`; a search that was interrupted goes on, as does one with another target.

    Raises:
        BackendError, BundleError, DataError, TargetError, TrialsError: one line that says what is wrong.
        ImportError: the report's packages are not installed.
    """
    check_report_packages()
    search = Search(job, progress)
    with closing(search.trials):
        result = search.run()
        saved = _write(search, result)
    if job.discard_search:
        shutil.rmtree(result.work)
    return result, saved


def _write(search: Search, result: SearchResult) -> BundleConfig:
    job, evaluator, recipe = search.job, search.evaluator, result.chosen.recipe
    arguments = {"recipe": recipe.to_dict(), "target": vars(job.target), "batches": list(job.batches)}
    plain, added = evaluator.recipes.config(recipe), RECORD_BYTES
    sure = _confidence(search, result)
    changes = {"structure": plain.structure, "tokens": plain.tokens, "widths": plain.widths, "confidence": sure}
    for _ in range(3):  # the sizes that are recorded are a part of the size
        metrics = {SEARCH: record(result, job, added)}
        config = made_from(search.baseline.config, "compress", arguments, result.seconds, metrics=metrics, **changes)
        added = len(readable_json(config.to_dict())) - len(readable_json(plain.to_dict()))

    def extras(saved: BundleConfig) -> Mapping[str, bytes]:
        return write_report(run_report(search, result, saved, arguments))

    return evaluator.recipes.save(result.chosen, job.out, config, overwrite=job.overwrite, extras=extras)


def _confidence(search: Search, result: SearchResult) -> ConfidenceThreshold | None:
    """Return the result's threshold of confidence, or the dense model's where that alone was found by labels."""
    of_dense, measured = search.baseline.config.confidence, result.models[result.chosen].confidence
    if measured is None or (measured.reference == "dense" and of_dense is not None and of_dense.reference == "labels"):
        return of_dense
    return measured


def record(result: SearchResult, job: CompressJob, added: int) -> dict[str, Any]:
    """Return what was measured as plain data: every model, whether it is on the Pareto frontier, and the chosen one.
    Their bytes have `added` instead of RECORD_BYTES."""
    ahead = pareto_frontier(list(result.models.values()), job.batches[0])
    rows = [
        {
            "name": model.name,
            "computed_by": model.how,
            "ms": {str(batch): round(ms, 3) for batch, ms in model.ms.items()},
            "speedup": round(speedup(model, result.dense), 3),
            "bytes": model.bytes - RECORD_BYTES + added,
            "quality": model.quality.to_dict(),
            "on_front": model in ahead,
            "chosen": candidate == result.chosen,
        }
        for candidate, model in result.models.items()
    ]
    return {
        "models": sorted(rows, key=lambda row: -row["speedup"]),
        "dense": {"computed_by": result.dense.how, "ms": {str(batch): ms for batch, ms in result.dense.ms.items()}},
        "images": result.dense.quality.images,
        "notes": list(result.notes),
        "measured_on": f"{processor_name()}, {counted(usable_cores(), 'core')}",
    }


def run_report(search: Search, result: SearchResult, config: BundleConfig, arguments: dict[str, Any]) -> RunReport:
    """Return the report of the bundle with this config, whose metrics have the search's record."""
    job, frontier = search.job, Frontier.from_dict(config.metrics[SEARCH])
    model = search.evaluator.model(result.chosen.recipe)
    before, after = _totals(search, model, frontier)
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
        layers=_layers(search, result.chosen.recipe, model),
        frontier=frontier,
        warnings=tuple(doubts(frontier)),
    )


def _layers(search: Search, recipe: Recipe, model: nn.Module) -> tuple[LayerRow, ...]:
    """A row for every linear layer of the recipe's model, where some are structured."""
    if recipe.structure is None:
        return ()
    structures, errors = search.evaluator.recipes.structures(recipe), search.evaluator.recipes.errors(recipe)
    reasons = {account.name: "dense" for account in layer_accounts(model)}
    reasons |= dict.fromkeys(structures, str(recipe.structure))
    notes = {name: {"reason": reason, "error": errors.get(name)} for name, reason in reasons.items()}
    return layer_rows(model, search.baseline.size, notes)


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


def _totals(search: Search, model: nn.Module, frontier: Frontier) -> tuple[Totals, Totals]:
    """Costs of the dense model and of the chosen one; bytes are those of their bundles."""
    batch, size = search.job.batches[0], search.baseline.size
    _, dense = model_totals(search.baseline.model, size)
    _, chosen = model_totals(model, size)
    chosen = replace(chosen, bytes=frontier.chosen.bytes, latency_ms=frontier.chosen.ms[batch])
    return replace(dense, bytes=search.baseline.config.bytes_on_disk, latency_ms=frontier.dense.ms[batch]), chosen
