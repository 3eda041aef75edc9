"""Trains a model on a folder of labelled images and writes its bundle: what `milkweed train` does."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..loaders.dataset.evaluation import PreparedImages
from ..loaders.dataset.training import Sample, TrainingImages
from ..loaders.errors import InputError
from ..loaders.preprocess.spec import PreprocessSpec
from ..models import BundleConfig, load_bundle, save_bundle
from ..models.bundle.provenance import add_step
from ..models.layers.layer_spec import layer_spec_of
from ..models.report import DataUse, Measured, check_report_packages, write_report
from ..models.training import (
    Alone,
    Classification,
    Distillation,
    Objective,
    Processes,
    Start,
    StateFolder,
    TrainResult,
    accuracy,
    densified,
    train_model,
)
from .train_model import starting_model
from .train_report import data_use, measured_row, run_report
from .train_request import TrainJob
from .train_split import fingerprint, plain_twin, split_samples

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Hooks:
    """Who is told how far it is: reading and training with units done and in all, and rows of the history."""

    reading: Callable[[int, int], None] | None = None
    training: Callable[[int, int], None] | None = None
    row: Callable[[Mapping[str, Any]], None] | None = None


@dataclass(frozen=True)
class TrainOutcome:
    """What training came to.

    Args:
        config: of the bundle that was written.
        result: of the run.
        data: training and held-out images.
        skipped: images that could not be read.
        seconds_by_step: reading, training (all parts of an interrupted run together), and writing.
    """

    config: BundleConfig
    result: TrainResult
    data: tuple[DataUse, DataUse]
    skipped: Mapping[Path, InputError]
    seconds_by_step: Mapping[str, float]


def train(
    request: TrainJob,
    hooks: Hooks | None = None,
    *,
    processes: Processes | None = None,
    command: str | None = None,
) -> TrainOutcome | None:
    """Train as asked and write the bundle; a run that was interrupted goes on where its state is.

    Args:
        processes: that share the run; only the first writes, the others return None.
        command: the command line that does it again, for the report.

    Raises:
        BundleError, DataError, TrainingError, ValueError: one line that says what is wrong.
        ImportError: the report's packages are not installed.
    """
    check_report_packages()  # not after hours of training
    processes, hooks, clock = processes or Alone(), hooks or Hooks(), time.perf_counter()
    model, config = starting_model(request)
    training, held_out = split_samples(request, config.labels)
    source = _source(request, config, training, processes, hooks)
    prepared = PreparedImages(held_out, PreprocessSpec.from_dict(config.preprocess), EVALUATION_BATCH)
    model.to(request.device)
    before = _measured_before(request, model, prepared) if processes.rank == 0 else None
    reading = time.perf_counter() - clock
    decided = fingerprint(request, config, training, held_out)
    result = _run(request, model, source, prepared, decided, processes, hooks)
    if processes.rank != 0:
        return None
    data = (
        data_use("training", request.data, len(source.samples), source.skipped),
        data_use("held out", request.held_out or request.data, _read(prepared), prepared.skipped),
    )
    seconds = {"reading": reading, "training": result.seconds}
    saved = _save(request, result, config, data, before, seconds, command)
    StateFolder(request.state).remove()
    return TrainOutcome(saved, result, data, {**source.skipped, **prepared.skipped}, seconds)


def _source(
    request: TrainJob, config: BundleConfig, samples: Sequence[Sample], processes: Processes, hooks: Hooks
) -> TrainingImages:
    return TrainingImages(
        samples,
        PreprocessSpec.from_dict(config.preprocess),
        request.augmentation,
        batch_size=request.recipe.batch_size,
        seed=request.recipe.seed,
        rank=processes.rank,
        processes=processes.count,
        workers=request.workers,
        progress=hooks.reading,
    )


def _run(
    request: TrainJob,
    model: nn.Module,
    source: TrainingImages,
    held_out: PreparedImages,
    decided: Mapping[str, Any],
    processes: Processes,
    hooks: Hooks,
) -> TrainResult:
    return train_model(
        model,
        _objective(request),
        source,
        request.recipe,
        state=request.state,
        fingerprint=decided,
        evaluate=lambda answering: accuracy(answering, held_out),
        evaluate_every=request.evaluate_every,
        monitor="top1" if request.keep_best or request.patience is not None else None,
        patience=request.patience,
        transform=None if request.s2d_epoch is None else (request.s2d_epoch, densified),
        keep_states_at=request.keep_states_at,
        keep_in=request.kept_states,
        start=None if request.start_state is None else Start(request.start_state, plain_twin(decided)),
        progress=hooks.training,
        on_row=hooks.row,
        processes=processes,
    )


def _objective(request: TrainJob) -> Objective:
    if request.teacher is None:
        return Classification(request.recipe)
    teacher, _ = load_bundle(request.teacher)
    return Distillation(teacher.to(request.device), request.recipe, request.temperature, request.hard_share)


def _measured_before(request: TrainJob, model: nn.Module, held_out: PreparedImages) -> Measured | None:
    """How good the model is that training starts from, if it is one."""
    if request.start_bundle is None or request.new_head:
        return None
    found = accuracy(model.eval(), held_out)
    return Measured(top1=found["top1"], top5=found.get("top5"), images=_read(held_out))


def _read(images: PreparedImages) -> int:
    return len(images.samples) - len(images.skipped)


def _save(
    request: TrainJob,
    result: TrainResult,
    config: BundleConfig,
    data: tuple[DataUse, DataUse],
    before: Measured | None,
    seconds: Mapping[str, float],
    command: str | None,
) -> BundleConfig:
    """Write the bundle with its report."""
    model = result.model.cpu().eval().requires_grad_(False)
    input_version = None if request.start_bundle is None else config.version
    row = measured_row(result)
    measured = {name: row[name] for name in ("top1", "top5", "held_out_loss", "epoch") if name in row}
    facts = {} if input_version is None else {"input_version": input_version, "input_metrics": dict(config.metrics)}
    config = replace(
        config,
        structure=layer_spec_of(model),
        metrics={"training": {"held_out": {**measured, "images": data[1].images}, "images": data[0].images}},
        provenance=add_step(config.provenance, "train", request.arguments(), result.seconds, **facts),
    )

    def extras(saved: BundleConfig) -> Mapping[str, bytes]:
        return write_report(
            run_report(
                request,
                saved,
                result,
                data=data,
                before=before,
                input_version=input_version,
                seconds_by_step=seconds,
                command=command,
            )
        )

    return save_bundle(request.out, model, config, overwrite=request.overwrite, extras=extras)
