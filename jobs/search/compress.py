"""Searches, and writes the bundle that meets the target, with a record and a report of all that was measured."""

import shutil
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from ...inference.device import processor_name, usable_cores
from ...models import BundleConfig, save_bundle
from ...models.bundle.provenance import made_from
from ...models.progress import SILENT, Progress
from ...models.report import check_report_packages, write_report
from ...models.report.frontier import SEARCH, pareto_frontier
from ...models.report.terms import counted
from .evaluator import OURS
from .job import SearchJob
from .report import run_report
from .search import Search, SearchResult
from .selection import speedup
from .widths import widths_of


def compress(job: SearchJob, progress: Progress = SILENT) -> tuple[SearchResult, BundleConfig]:
    """Search, and write the bundle `job.out`; a search that was interrupted goes on, as does one with another target.

    The bundle holds what was measured: the graph where a runtime computes it, the weights where torch does.

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
    job, recipe = search.job, result.chosen.recipe
    arguments = {**recipe.to_dict(), "target": vars(job.target), "batches": list(job.batches)}
    config = made_from(
        search.baseline.config,
        "compress",
        arguments,
        result.seconds,
        tokens=recipe.tokens,
        widths={**search.baseline.config.widths, **widths_of(search.baseline.model, recipe.widths)},
        metrics={SEARCH: record(result, job)},
    )

    def extras(saved: BundleConfig) -> Mapping[str, bytes]:
        return write_report(run_report(search, result, saved, arguments))

    return save_bundle(job.out, config=config, overwrite=job.overwrite, extras=extras, **_contents(search, result))


def _contents(search: Search, result: SearchResult) -> dict[str, Any]:
    """What `save_bundle` takes: weights for torch and our own kernels, else a graph, with weights where asked for."""
    evaluator, chosen = search.evaluator, result.chosen
    if chosen.runtime.backend == OURS:
        return evaluator.program(chosen).contents(search.baseline.size)
    graph = None if chosen.runtime.backend == "torch" else evaluator.graph(chosen)
    model = evaluator.model(chosen.recipe) if graph is None or search.job.keep_weights else None
    return {"model": model, "storage": None if model is None else search.baseline.config.storage, "graph": graph}


def record(result: SearchResult, job: SearchJob) -> dict[str, Any]:
    """Return what was measured as plain data: every model, whether it is on the Pareto frontier, and the chosen one."""
    ahead = pareto_frontier(list(result.models.values()), job.batches[0])
    rows = [
        {
            "name": model.name,
            "computed_by": model.how,
            "ms": {str(batch): round(ms, 3) for batch, ms in model.ms.items()},
            "speedup": round(speedup(model, result.dense), 3),
            "bytes": model.bytes,
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
