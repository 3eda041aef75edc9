"""Searches, and writes the bundle that meets the target, with a record and a report of all that was measured."""

import shutil
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from ...inference.device import processor_name, usable_cores
from ...models import BundleConfig
from ...models.bundle.provenance import made_from
from ...models.bundle.strict_json import readable_json
from ...models.progress import SILENT, Progress
from ...models.report import check_report_packages, write_report
from ...models.report.frontier import SEARCH, pareto_frontier
from ...models.report.terms import counted
from .evaluator import RECORD_BYTES
from .job import SearchJob
from .report import run_report
from .search import Search, SearchResult
from .selection import speedup


def compress(job: SearchJob, progress: Progress = SILENT) -> tuple[SearchResult, BundleConfig]:
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
    arguments = {**recipe.to_dict(), "target": vars(job.target), "batches": list(job.batches)}
    plain, added = evaluator.config(recipe), RECORD_BYTES
    for _ in range(3):  # the sizes that are recorded are a part of the size
        metrics = {SEARCH: record(result, job, added)}
        config = made_from(plain, "compress", arguments, result.seconds, metrics=metrics)
        added = len(readable_json(config.to_dict())) - len(readable_json(plain.to_dict()))

    def extras(saved: BundleConfig) -> Mapping[str, bytes]:
        return write_report(run_report(search, result, saved, arguments))

    return evaluator.save(result.chosen, job.out, config, overwrite=job.overwrite, extras=extras)


def record(result: SearchResult, job: SearchJob, added: int) -> dict[str, Any]:
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
