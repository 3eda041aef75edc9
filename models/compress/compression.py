"""Compresses a bundle: linear layers become structured ones, fitted to calibration images where there are any."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..bundle.bundle import load_bundle, save_bundle
from ..bundle.config import BundleConfig
from ..bundle.provenance import library_versions, made_from
from ..bundle.storage import as_stored
from ..layers.layer_spec import LayerSpec
from ..layers.select import layer_specs_for, linear_layer, select_linears
from ..progress import SILENT, Progress
from ..report import CurvePoint, DataUse, Measured, RunReport, check_report_packages, write_report
from ..report.rows import layer_rows, model_totals, written_bytes
from .calibration import Calibration, CalibrationImages, calibrate
from .choice import StructureChoice, choose_for_budget, fixed_choice
from .evaluator import Evaluator
from .projection.aware import RIDGE
from .projection.layer_fit import FitRequest, LayerFit, fit_layers
from .projection.permutation import arrange_hidden_units
from .quantisation import choose_storage
from .replacement import replace_layer
from .request import CompressRequest


@dataclass(frozen=True)
class CalibrationData:
    """Calibration images as tensors, with their record for the report.

    Args:
        images: normalised images (n, 3, H, W).
        targets: the class of each, int64 (n,), where they are labelled.
        use: how many of the folder's images were used, and which were skipped.
    """

    images: Tensor
    targets: Tensor | None
    use: DataUse


@dataclass(frozen=True)
class CompressReport:
    """The result of `compress_model`; `report` is the one that lies in the bundle as report.json."""

    config: BundleConfig
    report: RunReport
    seconds: float

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that were compressed."""
        return tuple(row.name for row in self.report.layers if row.kind != "dense")

    @property
    def parameters_before(self) -> int:
        assert self.report.totals_before is not None
        return self.report.totals_before.parameters

    @property
    def parameters_after(self) -> int:
        assert self.report.totals_after is not None
        return self.report.totals_after.parameters


def compress_model(
    source: str | Path,
    out: str | Path,
    request: CompressRequest,
    *,
    data: CalibrationData | None = None,
    device: torch.device | str = "cpu",
    overwrite: bool = False,
    progress: Progress = SILENT,
    command: str | None = None,
) -> CompressReport:
    """Read the bundle `source`, compress the chosen layers, write the bundle `out` with its report.

    Layers that are structured already stay as they are. Without calibration images each layer becomes the nearest
    structured matrix; with them, the one whose outputs are nearest on them.

    Args:
        device: the device that the images run on; layers are fitted on the CPU.
        command: the command line that does it again, for the report.

    Raises:
        BundleError: a bundle that cannot be read or written.
        ValueError: nothing selected, an option outside its limits, a layer that would grow, a budget that cannot be
            met (with the smallest possible), too few images.
        ImportError: the report's packages are not installed.
    """
    check_report_packages()  # not after an hour
    start = time.perf_counter()
    model, config = load_bundle(source)
    work = _Compression(model, config, request, progress)
    images = None if data is None else CalibrationImages.split(data.images.to(device), data.targets)
    if images is not None:
        work.calibrate(images)
    elif request.budget is not None:
        raise ValueError(f"budget {request.budget:g}: needs calibration images to measure what each layer is worth")
    choice = work.choose()
    fits = work.replace_layers(choice.structures)
    tried = None if images is None else images.held_out
    model.to(device)
    quantisation = choose_storage(model, request.storage, tried, work.size, limit=request.int8_limit)
    after = None if work.evaluator is None else work.evaluator(as_stored(model, quantisation.storage))
    report = work.report(choice, fits, after)
    report = replace(
        report,
        command=command,
        data=() if data is None else (data.use,),
        warnings=(*choice.warnings, *(images.warnings() if images else (NO_DATA,))),
    )
    seconds = time.perf_counter() - start
    config = made_from(
        config,
        "compress",
        request.to_dict(),
        seconds,
        structure={**config.structure, **{name: fit.structure for name, fit in fits.items()}},
        metrics={"compression": compression_metrics(report), **quantisation.metrics(measured=after is not None)},
    )
    return save_reported(Path(out), model, config, report, seconds, overwrite=overwrite, storage=quantisation.storage)


NO_DATA = (
    "plain projection sees no data and trains nothing: a trained model loses accuracy by it, often nearly all. "
    "Give --calibration, and measure the result (milkweed evaluate) before it serves anyone."
)


ARRANGED_NBLOCKS = 4
"""Where a budget chooses, hidden units are arranged for the block count in the middle."""


class _Compression:
    """A model that is being compressed, with what has been learnt of it so far."""

    def __init__(self, model: nn.Module, config: BundleConfig, request: CompressRequest, progress: Progress) -> None:
        self.model, self.config, self.request, self.progress = model, config, request, progress
        self.names, self.size = select_linears(model, request.layers), int(config.preprocess["size"])
        self.calibration: Calibration | None = None
        self.evaluator: Evaluator | None = None
        self.seconds: dict[str, float] = {}

    def calibrate(self, images: CalibrationImages) -> None:
        """Measure the inputs of the layers, and move hidden units to where Monarch layers fit better."""
        request, progress = self.request, self.progress
        self.model.to(images.fitted[0].device)
        with self._timed("calibration"):
            calibration = calibrate(self.model, self.names, images, progress.of("calibrating"))
        with self._timed("arrangement"):
            if request.structure == "monarch":
                nblocks = request.nblocks if request.budget is None else ARRANGED_NBLOCKS
                arranging = progress.of("arranging hidden units")
                calibration = calibration.rearranged(
                    arrange_hidden_units(self.model, calibration.fitted, nblocks, arranging)
                )
        self.calibration = calibration
        self.evaluator = Evaluator.on(self.model, images.held_out, images.held_out_targets)

    def choose(self) -> StructureChoice:
        """Choose the structure of each layer: the one that was asked for, or the best within the budget."""
        request = self.request
        with self._timed("choice"):
            if request.budget is None:
                options = {"nblocks": request.nblocks, "rank": request.rank, **request.options}
                return fixed_choice(layer_specs_for(self.model, self.names, request.structure, **options))
            assert self.calibration is not None
            assert self.evaluator is not None
            return choose_for_budget(self.model, request, self.calibration, self.evaluator, self.size, self.progress)

    def replace_layers(self, structures: Mapping[str, LayerSpec]) -> dict[str, LayerFit]:
        """Fit to all images, since the held-out ones are no longer needed for choices, and replace the layers."""
        statistics = {} if self.calibration is None else self.calibration.all()
        ridge = RIDGE if self.calibration is None else self.calibration.ridge
        with self._timed("projection"):
            self.model.cpu()
            requests = {
                name: FitRequest.of(linear_layer(self.model, name), structure, statistics.get(name))
                for name, structure in structures.items()
            }
            fits = fit_layers(requests, ridge=ridge, progress=self.progress.of("projecting layers"))
            for name, fit in fits.items():
                replace_layer(self.model, name, fit)
        return fits

    def report(self, choice: StructureChoice, fits: Mapping[str, LayerFit], after: Measured | None) -> RunReport:
        """Make the report of the compressed model, with its sizes in float32."""
        self.model.cpu()
        dense, compressed = model_totals(self.model, self.size)
        size = dense.parameters
        tried = []
        if self.evaluator is not None:
            measured = [(trial, self.evaluator.of_answers(trial.answers)) for trial in choice.trials]
            tried = [candidate(trial.label, size - trial.saved, size, quality) for trial, quality in measured]
        return RunReport(
            kind="compress",
            arch=self.config.arch,
            version="",
            input_version=self.config.version,
            arguments=self.request.to_dict(),
            versions=library_versions(),
            seconds_by_step=self.seconds,
            before=None if self.evaluator is None else self.evaluator.before,
            after=after,
            totals_before=dense,
            totals_after=compressed,
            layers=layer_rows(self.model, self.size, choice.notes(self.names, fits)),
            curve=(*tried, candidate("written", compressed.parameters, size, after or Measured(images=0), chosen=True)),
        )

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[step] = round(time.perf_counter() - started, 3)


def candidate(label: str, parameters: int, dense: int, measured: Measured, *, chosen: bool = False) -> CurvePoint:
    """A model for the report's curve: its size, as a share of the dense model's too, and its quality."""
    quality = {"kl": measured.kl, "agreement": measured.agreement, "top1": measured.top1}
    return CurvePoint(label=label, share=parameters / dense, parameters=parameters, chosen=chosen, **quality)


def save_reported(
    out: Path,
    model: nn.Module,
    config: BundleConfig,
    report: RunReport,
    seconds: float,
    *,
    overwrite: bool,
    storage: Mapping[str, str],
) -> CompressReport:
    """Write a bundle with its report, which then has the bundle's version."""

    def written(saved: BundleConfig) -> RunReport:
        return replace(written_bytes(report, model, storage, saved.bytes_on_disk), version=saved.version)

    saved = save_bundle(
        out, model, config, overwrite=overwrite, extras=lambda saved: write_report(written(saved)), storage=storage
    )
    return CompressReport(saved, written(saved), seconds)


def compression_metrics(report: RunReport) -> dict[str, Any]:
    """The record in config.json of sizes and held-out quality; the report beside it has the rest."""
    assert report.totals_before is not None
    assert report.totals_after is not None
    after = report.after
    return {
        "method": "fitted to calibration images" if report.data else "nearest matrices, no data",
        "parameters_before": report.totals_before.parameters,
        "parameters_after": report.totals_after.parameters,
        "layers": {row.name: {"kind": row.kind, "error": row.error} for row in report.layers if row.kind != "dense"},
        "held_out": None
        if after is None
        else {"images": after.images, "kl": after.kl, "agreement": after.agreement, "top1": after.top1},
    }
