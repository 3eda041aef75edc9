"""The report of a training run: what was asked, what it reached, and what the model costs layer by layer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..loaders.errors import InputError
from ..models import BundleConfig
from ..models.accounting import layer_accounts
from ..models.bundle.provenance import library_versions
from ..models.layers.structured import StructuredLinear
from ..models.report import DataUse, Measured, Role, RunReport, Skipped
from ..models.report.rows import LayerNote, layer_rows, model_totals
from ..models.training import TrainResult
from .train_request import TrainJob

FEW_IMAGES = 1000


def run_report(
    request: TrainJob,
    config: BundleConfig,
    result: TrainResult,
    *,
    data: tuple[DataUse, DataUse],
    before: Measured | None,
    input_version: str | None,
    seconds_by_step: Mapping[str, float],
    command: str | None,
) -> RunReport:
    """The record of a finished run.

    Args:
        config: of the bundle that was written.
        data: training and held-out images.
        before: how good the bundle was that it started from.
    """
    size = int(config.preprocess["size"])
    before_totals, after_totals = model_totals(result.model, size)
    row = measured_row(result)
    return RunReport(
        kind="train",
        arch=config.arch,
        version=config.version,
        input_version=input_version,
        arguments=request.arguments(),
        command=command,
        versions=library_versions(),
        seconds_by_step=seconds_by_step,
        data=data,
        before=before,
        after=Measured(top1=row.get("top1"), top5=row.get("top5"), images=data[1].images),
        totals_before=before_totals,
        totals_after=after_totals,
        layers=layer_rows(result.model, size, _notes(request, result.model)),
        history=result.history,
        warnings=tuple(_warnings(request, data)),
    )


def measured_row(result: TrainResult) -> Mapping[str, Any]:
    """The row of the history that tells how good the kept model is."""
    return result.best or next((row for row in reversed(result.history) if "top1" in row), {})


def data_use(role: Role, folder: Path, images: int, skipped: Mapping[Path, InputError]) -> DataUse:
    """What became of a folder's images."""
    refused = (Skipped(image=_within(path, folder), code=e.code, message=e.message) for path, e in skipped.items())
    return DataUse(role=role, folder=folder.resolve().name, images=images, skipped=tuple(refused))


def _within(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name


def _notes(request: TrainJob, model: nn.Module) -> dict[str, LayerNote]:
    """Why each linear layer is what it is."""
    return {
        account.name: LayerNote(
            reason=_reason(request, isinstance(model.get_submodule(account.name), StructuredLinear))
        )
        for account in layer_accounts(model)
    }


def _reason(request: TrainJob, structured: bool) -> str:
    if structured:
        return "trained with this structure"
    if request.s2d_epoch is not None:
        return f"dense: after epoch {request.s2d_epoch} every structured layer became dense (S2D)"
    if request.structure == "dense":
        return "dense: a dense model was asked for"
    return f"dense: not among the layers {', '.join(request.layers)}"


def _warnings(request: TrainJob, data: tuple[DataUse, DataUse]) -> list[str]:
    training, held_out = data
    warnings = []
    if request.keep_best or request.patience is not None:
        warnings.append(
            "the held-out images chose the epoch that was kept: accuracy on them is a little better than on others"
        )
    if held_out.images < FEW_IMAGES:
        warnings.append(f"accuracy was measured on only {held_out.images} images")
    skipped = len(training.skipped) + len(held_out.skipped)
    if skipped:
        warnings.append(f"{skipped} images could not be read and were skipped")
    return warnings
