"""Does the work of `milkweed train`: trains a model on a folder of labelled images and writes its bundle."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ..loaders.dataset.evaluation import PreparedImages
from ..loaders.dataset.training import Sample, TrainingImages
from ..loaders.errors import InputError
from ..loaders.preprocess.spec import PreprocessSpec
from ..models import BundleConfig, load_bundle, save_bundle
from ..models.bundle.provenance import add_step
from ..models.layers.layer_spec import layer_specs_of
from ..models.report import DataUse, Measured, check_report_packages, write_report
from ..models.training import (
    Classification,
    Distillation,
    Objective,
    Processes,
    Start,
    StateFolder,
    Trainer,
    TrainResult,
    accuracy,
    densified,
)
from .progress import Progress
from .starting_model import starting_model
from .train_job import TrainJob
from .train_report import data_use, measured_row, run_report
from .train_split import fingerprint, plain_twin, split_samples

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class TrainOutcome:
    """What a training run ended with.

    Args:
        config: the config of the bundle that was written.
        result: the trained model and its history.
        data: how the training and the held-out images were used.
        skipped: images that could not be read, and why.
        seconds_by_step: reading, training (all parts of an interrupted run together), and writing.
    """

    config: BundleConfig
    result: TrainResult
    data: tuple[DataUse, DataUse]
    skipped: Mapping[Path, InputError]
    seconds_by_step: Mapping[str, float]


def train(
    job: TrainJob,
    progress: Progress | None = None,
    *,
    processes: Processes | None = None,
    command: str | None = None,
) -> TrainOutcome | None:
    """Train as asked and write the bundle; a run that was interrupted goes on where its state is.

    Args:
        processes: those that share the run; only the first writes, the others return None.
        command: the command line that does it again, for the report.

    Raises:
        BundleError, DataError, TrainingError, ValueError: one line that says what is wrong.
        ImportError: the report's packages are not installed.
    """
    check_report_packages()  # not after hours of training
    processes, progress, clock = processes or Processes(), progress or Progress(), time.perf_counter()
    if (job.state / "state.json").exists():
        progress.note(f"going on from the state in {job.state}")
    model, config = starting_model(job)
    training, held_out = split_samples(job, config.labels)
    source = _source(job, config, training, processes, progress)
    prepared = PreparedImages(held_out, PreprocessSpec.from_dict(config.preprocess), EVALUATION_BATCH)
    model.to(job.device)
    before = _measured_before(job, model, prepared) if processes.rank == 0 else None
    reading = time.perf_counter() - clock
    decided = fingerprint(job, config, training, held_out)
    result = _run(job, model, source, prepared, decided, processes, progress)
    if processes.rank != 0:
        return None
    data = (
        data_use("training", job.data, len(source.samples), source.skipped),
        data_use("held out", job.held_out or job.data, _read(prepared), prepared.skipped),
    )
    seconds = {"reading": reading, "training": result.seconds}
    saved = _save(job, result, config, data, before, seconds, command)
    StateFolder(job.state).remove()
    skipped = {**source.skipped, **prepared.skipped}
    progress.skipped(skipped)
    return TrainOutcome(saved, result, data, skipped, seconds)


def _source(
    job: TrainJob, config: BundleConfig, samples: Sequence[Sample], processes: Processes, progress: Progress
) -> TrainingImages:
    progress.step("read", 0, len(samples))
    return TrainingImages(
        samples,
        PreprocessSpec.from_dict(config.preprocess),
        job.augmentation,
        batch_size=job.recipe.batch_size,
        seed=job.recipe.seed,
        rank=processes.rank,
        processes=processes.count,
        workers=job.workers,
        progress=partial(progress.step, "read"),
    )


def _run(
    job: TrainJob,
    model: nn.Module,
    source: TrainingImages,
    held_out: PreparedImages,
    decided: Mapping[str, Any],
    processes: Processes,
    progress: Progress,
) -> TrainResult:
    trainer = Trainer(
        model,
        _objective(job),
        source,
        job.recipe,
        state=job.state,
        fingerprint=decided,
        evaluate=lambda answering: accuracy(answering, held_out),
        evaluate_every=job.evaluate_every,
        monitor="top1" if job.keep_best or job.patience is not None else None,
        patience=job.patience,
        transform=None if job.s2d_epoch is None else (job.s2d_epoch, densified),
        keep_states_at=job.keep_states_at,
        keep_in=job.kept_states,
        start=None if job.start_state is None else Start(job.start_state, plain_twin(decided)),
        progress=partial(progress.step, "train"),
        on_row=progress.row,
        processes=processes,
    )
    return trainer.train()


def _objective(job: TrainJob) -> Objective:
    if job.teacher is None:
        return Classification(job.recipe)
    teacher, _ = load_bundle(job.teacher)
    return Distillation(teacher.to(job.device), job.recipe, job.temperature, job.hard_share)


def _measured_before(job: TrainJob, model: nn.Module, held_out: PreparedImages) -> Measured | None:
    """Accuracy of the model that training starts from; None where it starts from scratch or with a new head."""
    if job.start_bundle is None or job.new_head:
        return None
    found = accuracy(model.eval(), held_out)
    return Measured(top1=found["top1"], top5=found.get("top5"), images=_read(held_out))


def _read(images: PreparedImages) -> int:
    return len(images.samples) - len(images.skipped)


def _save(
    job: TrainJob,
    result: TrainResult,
    config: BundleConfig,
    data: tuple[DataUse, DataUse],
    before: Measured | None,
    seconds: Mapping[str, float],
    command: str | None,
) -> BundleConfig:
    """Write the bundle and its report."""
    model = result.model.cpu().eval().requires_grad_(False)
    input_version = None if job.start_bundle is None else config.version
    row = measured_row(result)
    measured = {name: row[name] for name in ("top1", "top5", "held_out_loss", "epoch") if name in row}
    facts = {} if input_version is None else {"input_version": input_version, "input_metrics": dict(config.metrics)}
    config = replace(
        config,
        structure=layer_specs_of(model),
        metrics={"training": {"held_out": {**measured, "images": data[1].images}, "images": data[0].images}},
        provenance=add_step(config.provenance, "train", job.arguments(), result.seconds, **facts),
    )

    def extras(saved: BundleConfig) -> Mapping[str, bytes]:
        return write_report(
            run_report(
                job,
                saved,
                result,
                data=data,
                before=before,
                input_version=input_version,
                seconds_by_step=seconds,
                command=command,
            )
        )

    return save_bundle(job.out, model, config, overwrite=job.overwrite, extras=extras)
