"""Searches, and writes the bundle that meets the target, with a record and a report of all that was measured."""

import shutil
from collections.abc import Mapping
from typing import Any

from ...inference.device import processor_name, usable_cores
from ...models import BundleConfig, save_bundle
from ...models.bundle.provenance import made_from
from ...models.progress import SILENT, Progress
from ...models.report import check_report_packages, write_report
from ...models.report.frontier import SEARCH, front
from ...models.report.terms import counted
from .front import speedup
from .job import SearchJob
from .narrower import widths_of
from .report import run_report
from .runs import OURS
from .search import Found, Search


def compress(job: SearchJob, progress: Progress = SILENT) -> tuple[Found, BundleConfig]:
    """Search, write the bundle `job.out`, and remove the work folder; a search that was interrupted goes on.

    The bundle holds what was measured: the graph where a runtime computes it, the weights where torch does.

    Raises:
        BackendError, BundleError, DataError, TargetError, TrialsError: one line that says what is wrong.
        ImportError: the report's packages are not installed.
    """
    check_report_packages()
    search = Search(job, progress)
    found = search.run()
    levers = found.chosen.levers
    arguments = {**levers.to_dict(), "target": vars(job.target), "batches": list(job.batches)}
    config = made_from(
        search.subject.config,
        "compress",
        arguments,
        found.seconds,
        tokens=levers.tokens,
        widths={**search.subject.config.widths, **widths_of(search.subject.model, levers.widths)},
        metrics={SEARCH: record(found, job)},
    )

    def extras(saved: BundleConfig) -> Mapping[str, bytes]:
        return write_report(run_report(search, found, saved, arguments))

    saved = save_bundle(job.out, config=config, overwrite=job.overwrite, extras=extras, **_contents(search, found))
    shutil.rmtree(job.work)
    return found, saved


def _contents(search: Search, found: Found) -> dict[str, Any]:
    """What `save_bundle` takes: weights for torch and our own kernels, else a graph, with weights where asked for."""
    runs, chosen = search.runs, found.chosen
    if chosen.candidate.backend == OURS:
        program, size = runs.program(chosen), search.subject.size
        return {
            "model": program.model,
            "storage": program.storage,
            "program": program.record(size),
            "activations": program.tensors or None,
            "operators": program.operators(size),
        }
    graph = None if chosen.candidate.backend == "torch" else runs.graph(chosen)
    model = runs.model(chosen.levers) if graph is None or search.job.keep_weights else None
    return {"model": model, "storage": None if model is None else search.subject.config.storage, "graph": graph}


def record(found: Found, job: SearchJob) -> dict[str, Any]:
    """Return what was measured as plain data: every model, which of them are on the front, and which was taken."""
    ahead = front(list(found.models.values()), job.batches[0])
    rows = [
        {
            "name": model.name,
            "computed_by": model.how,
            "ms": {str(batch): round(ms, 3) for batch, ms in model.ms.items()},
            "speedup": round(speedup(model, found.dense), 3),
            "bytes": model.bytes,
            "quality": model.quality.to_dict(),
            "on_front": model in ahead,
            "chosen": run == found.chosen,
        }
        for run, model in found.models.items()
    ]
    return {
        "models": sorted(rows, key=lambda row: -row["speedup"]),
        "dense": {"computed_by": found.dense.how, "ms": {str(batch): ms for batch, ms in found.dense.ms.items()}},
        "images": found.dense.quality.images,
        "notes": list(found.notes),
        "measured_on": f"{processor_name()}, {counted(usable_cores(), 'core')}",
    }
