"""Does the work of `milkweed train`: trains a model on a folder of labelled images and writes its bundle."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from ..loaders.dataset.evaluation import PreparedImages
from ..loaders.dataset.training import Sample, TrainingImages
from ..loaders.preprocess.spec import PreprocessSpec
from ..models import BundleConfig, load_bundle, save_bundle
from ..models.bundle.provenance import add_step
from ..models.bundle.reading import read_single_label
from ..models.layers.select import layer_specs_of
from ..models.progress import SILENT, Progress
from ..models.report import Measured, check_report_packages, write_report
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
    as_dense,
    confidence_threshold,
)
from .progress import note_skipped
from .starting_model import starting_model
from .train_job import TrainJob
from .train_report import TrainOutcome, data_use, measured_row, run_report
from .train_split import fingerprint, plain_twin, split_samples

EVALUATION_BATCH = 256


def train(
    job: TrainJob,
    progress: Progress = SILENT,
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
    processes, clock = processes or Processes(), time.perf_counter()
    if (job.state / "state.json").exists():
        progress.note(f"going on from the state in {job.state}")
    # As it lies there: training may begin with another structure or other preprocessing.
    input_version = read_single_label(job.start_bundle, "train").version if job.start_bundle else None
    if job.teacher is not None:
        read_single_label(job.teacher, "train")
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
    skipped = {**source.skipped, **prepared.skipped}
    seconds = {"reading": reading, "training": result.seconds}
    config = replace(config, confidence=confidence_threshold(result.model.to(job.device).eval(), prepared))
    outcome = _saved(job, TrainOutcome(config, result, data, before, skipped, seconds), command, input_version)
    StateFolder(job.state).remove()
    note_skipped(progress, skipped)
    return outcome


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
        progress=progress.of("read"),
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
        transform=None if job.s2d_epoch is None else (job.s2d_epoch, as_dense),
        keep_states_at=job.keep_states_at,
        keep_in=job.kept_states,
        start=None if job.start_state is None else Start(job.start_state, plain_twin(decided)),
        progress=progress,
        processes=processes,
    )
    return trainer.train()


def _objective(job: TrainJob) -> Objective:
    if job.teacher is None:
        return Classification(job.recipe)
    teacher, _ = load_bundle(job.teacher)
    return Distillation(teacher.to(job.device), job.recipe, job.temperature, job.label_weight)


def _measured_before(job: TrainJob, model: nn.Module, held_out: PreparedImages) -> Measured | None:
    """Accuracy of the model that training starts from; None where it starts from scratch or with a new head."""
    if job.start_bundle is None or job.new_head:
        return None
    figures = accuracy(model.eval(), held_out)
    return Measured(top1=figures["top1"], top5=figures.get("top5"), images=_read(held_out))


def _read(images: PreparedImages) -> int:
    return len(images.samples) - len(images.skipped)


def _saved(job: TrainJob, outcome: TrainOutcome, command: str | None, input_version: str | None) -> TrainOutcome:
    """Write the bundle and its report; the config that is returned is that of the bundle."""
    result, config = outcome.result, outcome.config
    model = result.model.cpu().eval().requires_grad_(False)
    row = measured_row(result)
    measured = {name: row[name] for name in ("top1", "top5", "held_out_loss", "epoch") if name in row}
    facts = {"input_version": input_version, "input_metrics": dict(config.metrics)} if job.start_bundle else {}
    training, held_out = outcome.data
    config = replace(
        config,
        structure=layer_specs_of(model),
        metrics={"training": {"held_out": {**measured, "images": held_out.images}, "images": training.images}},
        provenance=add_step(config.provenance, "train", job.arguments(), result.seconds, **facts),
    )

    def extras(saved: BundleConfig) -> Mapping[str, bytes]:
        return write_report(run_report(job, replace(outcome, config=saved), command))

    return replace(outcome, config=save_bundle(job.out, model, config, overwrite=job.overwrite, extras=extras))
