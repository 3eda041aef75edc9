"""Makes the report of a training run: its arguments, its accuracy, and the cost of the model layer by layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..loaders.errors import InputError
from ..models import BundleConfig
from ..models.accounting import layer_accounts
from ..models.bundle.provenance import library_versions
from ..models.layers.structured import StructuredLinear
from ..models.report import DataUse, Measured, Role, RunReport, Skipped
from ..models.report.rows import layer_rows, written_totals
from ..models.training import TrainResult
from .train_job import TrainJob

FEW_IMAGES = 1000


@dataclass(frozen=True)
class TrainOutcome:
    """What a training run ended with.

    Args:
        config: the config of the bundle that was written.
        result: the trained model and its history.
        data: how the training and the held-out images were used.
        before: the accuracy of the bundle that training started from.
        skipped: images that could not be read, and why.
        seconds_by_step: reading, and training (all parts of an interrupted run together).
    """

    config: BundleConfig
    result: TrainResult
    data: tuple[DataUse, DataUse]
    before: Measured | None
    skipped: Mapping[Path, InputError]
    seconds_by_step: Mapping[str, float]


def run_report(job: TrainJob, outcome: TrainOutcome, command: str | None) -> RunReport:
    """Make the report of a finished run; the outcome has the config of the bundle that was written."""
    config, result, held_out = outcome.config, outcome.result, outcome.data[1]
    size = int(config.preprocess["size"])
    before_totals, after_totals = written_totals(result.model, size, config.bytes_on_disk)
    row = measured_row(result)
    return RunReport(
        kind="train",
        arch=config.arch,
        version=config.version,
        input_version=config.provenance["commands"][-1].get("input_version"),
        arguments=job.arguments(),
        command=command,
        versions=library_versions(),
        seconds_by_step=outcome.seconds_by_step,
        data=outcome.data,
        before=outcome.before,
        after=Measured(top1=row.get("top1"), top5=row.get("top5"), images=held_out.images),
        totals_before=before_totals,
        totals_after=after_totals,
        layers=layer_rows(result.model, size, _notes(job, result.model)),
        history=result.history,
        warnings=tuple(_warnings(job, outcome.data)),
    )


def measured_row(result: TrainResult) -> Mapping[str, Any]:
    """Return the row of the history that has the accuracy of the model that was kept."""
    return result.best or next((row for row in reversed(result.history) if "top1" in row), {})


def data_use(role: Role, folder: Path, images: int, skipped: Mapping[Path, InputError]) -> DataUse:
    """Record how many of a folder's images were used, and which were skipped."""
    refused = (Skipped(image=_within(path, folder), code=e.code, message=e.message) for path, e in skipped.items())
    return DataUse(role=role, folder=folder.resolve().name, images=images, skipped=tuple(refused))


def _within(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name


def _notes(job: TrainJob, model: nn.Module) -> dict[str, dict[str, str]]:
    """Give the reason for the structure of each linear layer."""
    return {
        account.name: {"reason": _reason(job, isinstance(model.get_submodule(account.name), StructuredLinear))}
        for account in layer_accounts(model)
    }


def _reason(job: TrainJob, structured: bool) -> str:
    if structured:
        return "trained with this structure"
    if job.s2d_epoch is not None:
        return f"dense: after epoch {job.s2d_epoch} every structured layer became dense (S2D)"
    if job.structure == "dense":
        return "dense: a dense model was asked for"
    return f"dense: not among the layers {', '.join(job.layers)}"


def _warnings(job: TrainJob, data: tuple[DataUse, DataUse]) -> list[str]:
    training, held_out = data
    warnings = []
    if job.keep_best or job.patience is not None:
        warnings.append(
            "the held-out images chose the epoch that was kept: accuracy on them is a little better than on others"
        )
    if held_out.images < FEW_IMAGES:
        warnings.append(f"accuracy was measured on only {held_out.images} images")
    skipped = len(training.skipped) + len(held_out.skipped)
    if skipped:
        warnings.append(f"{skipped} images could not be read and were skipped")
    return warnings
