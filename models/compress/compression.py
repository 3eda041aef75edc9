"""Compresses a bundle: linear layers become structured ones, fitted to calibration images where there are any."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..bundle.bundle import load_bundle, save_bundle
from ..bundle.config import BundleConfig
from ..bundle.provenance import add_step, library_versions
from ..bundle.storage import as_stored
from ..layers.layer_spec import LayerSpec, layer_specs_for
from ..layers.select import linear_layer, select_linears
from ..report import Candidate as TriedModel
from ..report import DataUse, Measured, RunReport, check_report_packages, write_report
from ..report.rows import layer_rows, model_totals, stored_bytes
from .allocation.costs import LayerCosts
from .allocation.search import Progress as Progress
from .calibration import Calibration, Images, calibrate
from .choice import Choice, choose_for_budget, fixed_choice
from .measured import Measuring
from .projection.aware import RIDGE
from .projection.layer_fit import FitRequest, LayerFit, fit_layers
from .projection.permutation import arrange_hidden_units
from .quantisation import Quantisation, choose_storage
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
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    command: str | None = None,
) -> CompressReport:
    """Read the bundle `source`, compress the chosen layers, write the bundle `out` with its report.

    Layers that are structured already stay as they are. Without calibration images each layer becomes the nearest
    structured matrix; with them, the one whose outputs are nearest on them.

    Args:
        device: the device that the images run on; layers are fitted on the CPU.
        note: is called with sentences for a person on what a search tried.
        command: the command line that does it again, for the report.

    Raises:
        BundleError: a bundle that cannot be read or written.
        ValueError: nothing selected, an option outside its limits, a layer that would grow, a budget that cannot be
            met (with the smallest possible), too few images.
        ImportError: the report's packages are not installed.
    """
    check_report_packages()  # not after an hour
    start = time.perf_counter()
    clock = _Clock()
    model, config = load_bundle(source)
    names = select_linears(model, request.layers)
    size = int(config.preprocess["size"])
    images = calibration = None
    if data is not None:
        model = model.to(device)
        images = Images.split(data.images.to(device), data.targets)
        with clock("calibration"):
            calibration = calibrate(model, names, images, _named(progress, "calibrating"))
        with clock("arrangement"):
            calibration = _arranged(model, request, calibration, progress)
    elif request.budget is not None:
        raise ValueError(f"budget {request.budget:g}: needs calibration images to measure what each layer is worth")
    measuring = None if images is None else Measuring.of(model, images)
    with clock("choice"):
        choice = _choose(model, names, request, calibration, measuring, size, progress, note)
    with clock("projection"):
        model = model.cpu()
        fits = _final_fits(model, choice.structures, calibration, progress)
        for name, fit in fits.items():
            replace_layer(model, name, fit)
    model = model.to(device)
    tried = None if images is None else images.held_out
    quantisation = choose_storage(model, request.storage, tried, size, limit=request.int8_limit)
    after = None if measuring is None else measuring(as_stored(model, quantisation.storage))
    model = model.cpu()
    report = RunReport(
        kind="compress",
        arch=config.arch,
        version="",
        input_version=config.version,
        arguments=request.to_dict(),
        command=command,
        versions=library_versions(),
        seconds_by_step=clock.seconds,
        data=() if data is None else (data.use,),
        before=None if measuring is None else measuring.before,
        after=after,
        totals_before=(totals := model_totals(model, size))[0],
        totals_after=totals[1],
        layers=layer_rows(model, size, choice.notes(names, fits)),
        curve=_curve(choice, after, totals[0].parameters, totals[1].parameters),
        warnings=(*choice.warnings, *(images.warnings() if images else (NO_DATA,))),
    )
    report = stored_bytes(report, model, quantisation.storage)
    return _save(Path(out), model, config, request, report, fits, quantisation, time.perf_counter() - start, overwrite)


NO_DATA = (
    "plain projection sees no data and trains nothing: a trained model loses accuracy by it, often nearly all. "
    "Give --calibration, and measure the result (milkweed evaluate) before it serves anyone."
)


ARRANGED_NBLOCKS = 4
"""Where a budget chooses, hidden units are arranged for the block count in the middle."""


def _arranged(
    model: nn.Module, request: CompressRequest, calibration: Calibration, progress: Progress | None
) -> Calibration:
    """Move hidden units to where Monarch layers fit better; the model's function stays."""
    if request.structure != "monarch":
        return calibration
    nblocks = request.nblocks if request.budget is None else ARRANGED_NBLOCKS
    moved = arrange_hidden_units(model, calibration.fitted, nblocks, _named(progress, "arranging hidden units"))
    return calibration.rearranged(moved)


def _choose(
    model: nn.Module,
    names: list[str],
    request: CompressRequest,
    calibration: Calibration | None,
    measuring: Measuring | None,
    size: int,
    progress: Progress | None,
    note: Callable[[str], None] | None,
) -> Choice:
    if request.budget is None:
        structures = layer_specs_for(
            model, names, request.structure, nblocks=request.nblocks, rank=request.rank, **request.options
        )
        return fixed_choice(structures)
    assert calibration is not None
    assert measuring is not None
    costs = LayerCosts(model, names, request.cost, size)
    return choose_for_budget(model, request, calibration, costs, measuring, progress, note)


def _final_fits(
    model: nn.Module,
    structures: Mapping[str, LayerSpec],
    calibration: Calibration | None,
    progress: Progress | None,
) -> dict[str, LayerFit]:
    """The fits to all images, since the held-out ones are no longer needed for choices."""
    statistics = {} if calibration is None else calibration.all()
    requests = {
        name: FitRequest.of(linear_layer(model, name), structure, statistics.get(name))
        for name, structure in structures.items()
    }
    ridge = RIDGE if calibration is None else calibration.ridge
    return fit_layers(requests, ridge=ridge, progress=_named(progress, "projecting layers"))


def _curve(choice: Choice, after: Measured | None, dense: int, parameters: int) -> tuple[TriedModel, ...]:
    """Every allocation that was measured, and the model that was written."""
    tried = [candidate(trial.label, dense - trial.saved, dense, trial.found) for trial in choice.trials]
    return (*tried, candidate("written", parameters, dense, after or Measured(images=0), chosen=True))


def candidate(label: str, parameters: int, dense: int, found: Measured, *, chosen: bool = False) -> TriedModel:
    """A model for the report's curve: its size, as a share of the dense model's too, and its quality."""
    quality = {"kl": found.kl, "agreement": found.agreement, "top1": found.top1}
    return TriedModel(label=label, share=parameters / dense, parameters=parameters, chosen=chosen, **quality)


def _save(
    out: Path,
    model: nn.Module,
    config: BundleConfig,
    request: CompressRequest,
    report: RunReport,
    fits: Mapping[str, LayerFit],
    quantisation: Quantisation,
    seconds: float,
    overwrite: bool,
) -> CompressReport:
    config = replace(
        config,
        structure={**config.structure, **{name: fit.structure for name, fit in fits.items()}},
        metrics={"compression": compression_metrics(report), **quantisation.metrics(measured=report.after is not None)},
        provenance=add_step(
            config.provenance,
            "compress",
            request.to_dict(),
            seconds,
            input_version=config.version,
            input_metrics=dict(config.metrics),  # measured on the dense model: they do not hold for this one
        ),
    )
    return save_reported(out, model, config, report, seconds, overwrite=overwrite, storage=quantisation.storage)


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

    def extras(saved: BundleConfig) -> Mapping[str, bytes]:
        return write_report(replace(report, version=saved.version))

    saved = save_bundle(out, model, config, overwrite=overwrite, extras=extras, storage=storage)
    return CompressReport(saved, replace(report, version=saved.version), seconds)


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


def _named(progress: Progress | None, step: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(step, done, total)


class _Clock:
    """Measures the seconds of each step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[step] = round(time.perf_counter() - started, 3)
