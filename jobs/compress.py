"""Compresses a bundle by images in a folder, and recovers it: what `milkweed compress` does.

With a recovery, the compressed model is first written whole into a work folder beside OUT, then trained there with
its state saved as it goes. Whatever kills the run, the same command goes on from what is there, and ends where it
would have ended.
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..loaders.dataset.evaluation import PreparedImages
from ..loaders.dataset.training import Sample, TrainingImages
from ..loaders.preprocess.spec import PreprocessSpec
from ..models import BundleConfig, load_bundle, read_config, save_bundle
from ..models.bundle.provenance import add_step
from ..models.bundle.storage import as_stored
from ..models.compress import CompressReport, CompressRequest, compress_model
from ..models.compress.choice import HELD_OUT_CHOSE
from ..models.compress.measured import Measuring
from ..models.compress.quantisation import Quantisation, choose_storage
from ..models.recovery import RecoveryResult, recover
from ..models.report import Candidate, DataUse, Measured, RunReport, read_report, write_report
from ..models.report.rows import stored_bytes
from ..models.training import TrainingError
from .calibration_images import (
    BATCH,
    calibration_data,
    calibration_samples,
    folder_samples,
    name_skipped,
    split_held_out,
)
from .compress_request import CompressJob, Progress
from .dataset import DataError
from .train_report import data_use
from .train_split import digest

COMPRESSED = "compressed"
"""In the work folder: the bundle before its recovery."""


def compress(run: CompressJob, hooks: Progress | None = None) -> CompressReport:
    """Compress as asked and write the bundle; a recovery that was interrupted goes on.

    Raises:
        BundleError, DataError, TrainingError, ValueError: one line that says what is wrong.
        ImportError: the report's packages are not installed.
    """
    hooks = hooks or Progress()
    if run.recover is None:
        return _compressed(run, run.request, run.out, hooks, run.overwrite)
    started = time.perf_counter()
    samples = _recovery_samples(run)  # what is wrong with them is said now, not after the compression
    _claim_work(run, hooks)
    if not _has_compressed(run):
        try:
            # What is trained on is stored exactly.
            _compressed(run, replace(run.request, storage="float32"), run.work / COMPRESSED, hooks, overwrite=True)
        except Exception:
            shutil.rmtree(run.work, ignore_errors=True)  # nothing in it to go on with
            raise
    done = _recovered(run, samples, hooks)
    shutil.rmtree(run.work)
    return replace(done, seconds=time.perf_counter() - started)


def _compressed(
    run: CompressJob, request: CompressRequest, out: Path, hooks: Progress, overwrite: bool
) -> CompressReport:
    data = calibration_data(run, hooks)
    return compress_model(
        run.source,
        out,
        request,
        data=data,
        device=run.device,
        overwrite=overwrite,
        progress=hooks.step,
        note=hooks.note,
        command=run.command,
    )


def _recovery_samples(run: CompressJob) -> tuple[list[Sample], list[Sample]]:
    """Images to recover with, and to judge by.

    Raises:
        DataError: too few images, or classes that fit no label where they are wanted.
    """
    assert run.recover is not None
    labelled = run.plan.hard_share > 0
    return split_held_out(folder_samples(run.recover, read_config(run.source), labelled=labelled), run.recover)


def _has_compressed(run: CompressJob) -> bool:
    """Whether the work folder holds the compressed model, whole."""
    return (run.work / COMPRESSED / "config.json").exists()


def _recovered(run: CompressJob, samples: tuple[list[Sample], list[Sample]], hooks: Progress) -> CompressReport:
    """Recover the bundle in the work folder, and write OUT."""
    assert run.recover is not None
    teacher, config = load_bundle(run.source)
    model, compressed_config = load_bundle(run.work / COMPRESSED)
    report = read_report(run.work / COMPRESSED)
    assert report is not None
    report = replace(report, arguments=run.request.to_dict())
    training, held_out = samples
    spec = PreprocessSpec.from_dict(config.preprocess)
    source = TrainingImages(
        training, spec, run.augmentation, batch_size=run.plan.batch_size, seed=run.plan.seed, workers=run.workers
    )
    prepared = PreparedImages(held_out, spec, BATCH)
    measuring = _measuring(teacher.to(run.device), prepared, run)
    before = measuring(model.to(run.device))
    name_skipped({**source.skipped, **prepared.skipped}, hooks)
    result = recover(
        model,
        teacher,
        source,
        plan=run.plan,
        held_out=measuring.batches,
        state=run.work / "recovery",
        fingerprint={
            **run.recovery_fingerprint(),
            "from": compressed_config.version,
            "data": digest(run.recover, training),
            "held out": digest(run.recover, held_out),
        },
        progress=hooks.step,
        on_row=hooks.row,
    )
    if result.resumed:
        hooks.say("the recovery went on where it was interrupted")
    request = run.request
    quantisation = choose_storage(result.model, request.storage, measuring.batches, spec.size, limit=request.int8_limit)
    after = measuring(as_stored(result.model, quantisation.storage))
    report = _with_recovery(report, result, before, after, measuring, _uses(run, source, prepared))
    report = stored_bytes(report, result.model, quantisation.storage)
    return _save(run, result, compressed_config, report, quantisation)


def _measuring(teacher: torch.nn.Module, prepared: PreparedImages, run: CompressJob) -> Measuring:
    batches, targets = [], []
    for images, classes in prepared:
        batches.append(images.to(run.device))
        if classes is not None:
            targets.append(classes)
    if not batches:
        raise DataError(f"DATA {run.recover}: none of the {len(prepared.samples)} held-out images can be read")
    return Measuring.on(teacher, batches, torch.cat(targets) if targets else None)


def _with_recovery(
    report: RunReport,
    result: RecoveryResult,
    before: Measured,
    after: Measured,
    measuring: Measuring,
    uses: Sequence[DataUse],
) -> RunReport:
    """The compression's report, carried on: quality is of the recovery's held-out images from here on."""
    assert report.totals_after is not None
    assert report.totals_before is not None
    parameters = report.totals_after.parameters
    share = parameters / report.totals_before.parameters
    curve = [replace(tried, chosen=False) for tried in report.curve if not tried.chosen]
    curve += [
        _candidate("before recovery", share, parameters, before, chosen=False),
        _candidate("written", share, parameters, after, chosen=True),
    ]
    return replace(
        report,
        seconds_by_step={**report.seconds_by_step, "recovery": round(result.seconds, 3)},
        data=(*report.data, *uses),
        before=measuring.before,
        after=after,
        curve=tuple(curve),
        history=result.history,
        # what chose the structures is not measured on any more
        warnings=(
            *(text for text in report.warnings if text != HELD_OUT_CHOSE),
            IN_VAIN if result.kl_after == result.kl_before else EPOCH_CHOSEN,
        ),
    )


EPOCH_CHOSEN = (
    "the held-out images chose the epoch that was kept: figures on them are a little better than on others; measure "
    "with images of your own (milkweed evaluate)"
)
IN_VAIN = (
    "the recovery found nothing better on its held-out images: the model before it was written; more images, or a "
    "smaller --recover-lr, may help"
)


def _candidate(label: str, share: float, parameters: int, found: Measured, *, chosen: bool) -> Candidate:
    return Candidate(
        label=label,
        share=share,
        parameters=parameters,
        kl=found.kl,
        agreement=found.agreement,
        top1=found.top1,
        chosen=chosen,
    )


def _uses(run: CompressJob, source: TrainingImages, prepared: PreparedImages) -> tuple[DataUse, DataUse]:
    assert run.recover is not None
    return (
        data_use("recovery", run.recover, len(source.samples), source.skipped),
        data_use("held out", run.recover, len(prepared.samples) - len(prepared.skipped), prepared.skipped),
    )


def _save(
    run: CompressJob, result: RecoveryResult, config: BundleConfig, report: RunReport, quantisation: Quantisation
) -> CompressReport:
    finished: list[RunReport] = []

    def extras(saved: BundleConfig) -> Mapping[str, bytes]:
        finished.append(replace(report, version=saved.version))
        return write_report(finished[0])

    found = report.after
    assert found is not None
    recovery = {"images": found.images, "kl": found.kl, "agreement": found.agreement}
    metrics = {**config.metrics, "recovery": recovery, **quantisation.metrics(measured=True)}
    arguments = {**run.recovery_fingerprint(), "plan": dict(run.plan.to_dict()), "storage": quantisation.weights}
    provenance = add_step(config.provenance, "recover", arguments, result.seconds, input_version=config.version)
    model = result.model.cpu().requires_grad_(False)
    saved = save_bundle(
        run.out,
        model,
        replace(config, metrics=metrics, provenance=provenance),
        overwrite=run.overwrite,
        extras=extras,
        storage=quantisation.storage,
    )
    return CompressReport(saved, finished[0], result.seconds)


def _claim_work(run: CompressJob, hooks: Progress) -> None:
    """Take the work folder for this run, or find that it is this run's already.

    Raises:
        TrainingError: it is another run's; names the first difference.
    """
    folder = run.calibration_folder
    assert folder is not None
    config = read_config(run.source)
    samples = calibration_samples(run, folder, config)
    mine = {**run.fingerprint(), "from": config.version, "calibration": digest(folder, samples)}
    mine = json.loads(json.dumps(mine))  # as it will be read back
    file = run.work / "run.json"
    if file.exists() and _has_compressed(run):
        theirs = json.loads(file.read_text())
        odd = next((name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)), None)
        if odd is not None:
            raise TrainingError(
                f"{run.work} holds an unfinished run with {odd} {theirs.get(odd)!r}, not {mine.get(odd)!r}: "
                "give that run's options to go on with it, or remove the folder"
            )
        hooks.say(f"going on with the unfinished run in {run.work}")
        return
    run.work.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(mine, indent=2))
    partial.replace(file)
