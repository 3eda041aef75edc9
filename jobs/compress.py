"""Does the work of `milkweed compress`: compresses a bundle by images in a folder, and distills it.

With a distillation, the compressed model is first written whole into a work folder beside OUT, then trained there with
its state saved as it goes. Whatever kills the run, the same command goes on from what is there, and ends where it
would have ended.
"""

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..loaders.dataset.training import Sample, TrainingImages
from ..loaders.preprocess.spec import PreprocessSpec
from ..models import BundleConfig, load_bundle, read_config
from ..models.bundle.provenance import add_step
from ..models.bundle.reading import read_single_label
from ..models.bundle.storage import as_stored
from ..models.compress import CompressReport, CompressRequest, compress_model
from ..models.compress.choice import HELD_OUT_CHOSE
from ..models.compress.compression import candidate, save_reported
from ..models.compress.evaluator import Evaluator
from ..models.compress.quantisation import choose_storage
from ..models.distillation import DistillationResult, distill
from ..models.progress import SILENT, Progress
from ..models.report import DataUse, Measured, RunReport, read_report
from ..models.training import TrainingError
from .calibration_images import calibration_data, calibration_samples, folder_samples, read_images, split_held_out
from .compress_job import CompressJob
from .dataset import DataError
from .progress import note_skipped
from .train_report import data_use
from .train_split import digest

COMPRESSED = "compressed"
"""The name of the bundle before its distillation, in the work folder."""

EPOCH_CHOSEN = (
    "the held-out images chose the epoch that was kept: figures on them are a little better than on others; measure "
    "with images of your own (milkweed evaluate)"
)
IN_VAIN = (
    "the distillation found nothing better on its held-out images: the model before it was written; more images, or a "
    "smaller --recover-lr, may help"
)


def compress(job: CompressJob, progress: Progress = SILENT) -> CompressReport:
    """Compress as asked and write the bundle; a distillation that was interrupted goes on.

    Raises:
        BundleError, DataError, TrainingError, ValueError: one line that says what is wrong.
        ImportError: the report's packages are not installed.
    """
    read_single_label(job.source, "compress")
    if job.recover is None:
        return _compressed(job, job.request, job.out, progress, job.overwrite)
    started = time.perf_counter()
    labelled = job.plan.label_weight > 0
    images = folder_samples(job.recover, read_config(job.source), labelled=labelled)
    samples = split_held_out(images, job.recover)  # before the compression, so that bad images are refused at once
    _claim_work(job, progress)
    if not _has_compressed(job):
        try:
            # The distillation starts from exact weights.
            _compressed(job, replace(job.request, storage="float32"), job.work / COMPRESSED, progress, overwrite=True)
        except Exception:
            shutil.rmtree(job.work, ignore_errors=True)  # it holds nothing to go on with
            raise
    done = _distilled(job, samples, progress)
    shutil.rmtree(job.work)
    return replace(done, seconds=time.perf_counter() - started)


def _compressed(
    job: CompressJob, request: CompressRequest, out: Path, progress: Progress, overwrite: bool
) -> CompressReport:
    data = calibration_data(job, progress)
    return compress_model(
        job.source,
        out,
        request,
        data=data,
        device=job.device,
        overwrite=overwrite,
        progress=progress,
        command=job.command,
    )


def _has_compressed(job: CompressJob) -> bool:
    """Tell whether the work folder holds the whole compressed model."""
    return (job.work / COMPRESSED / "config.json").exists()


def _distilled(job: CompressJob, samples: tuple[list[Sample], list[Sample]], progress: Progress) -> CompressReport:
    """Distill the bundle in the work folder, and write OUT."""
    assert job.recover is not None
    plan, (teacher, config) = job.plan, load_bundle(job.source)
    model, compressed_config = load_bundle(job.work / COMPRESSED)
    spec = PreprocessSpec.from_dict(config.preprocess)
    source = TrainingImages(
        samples[0], spec, job.augmentation, batch_size=plan.batch_size, seed=plan.seed, workers=job.workers
    )
    images = read_images(samples[1], config, "held-out", SILENT)
    if not len(images):
        raise DataError(f"DATA {job.recover}: none of the {len(samples[1])} held-out images can be read")
    batches = [batch.to(job.device) for batch in images.batches]
    evaluator = Evaluator.on(teacher.to(job.device), batches, images.targets)
    before = evaluator(model.to(job.device))
    note_skipped(progress, {**source.skipped, **images.skipped})
    data, held_out = (digest(job.recover, part) for part in samples)
    decided = {"from": compressed_config.version, "data": data, "held out": held_out}
    fingerprint, state = {**job.distillation_fingerprint(), **decided}, job.work / "recovery"
    result = distill(
        model, teacher, source, plan=plan, held_out=batches, state=state, fingerprint=fingerprint, progress=progress
    )
    if result.resumed:
        progress.note("the distillation went on where it was interrupted")
    uses = (
        data_use("recovery", job.recover, len(source.samples), source.skipped),
        data_use("held out", job.recover, len(images), images.skipped),
    )
    return _save(job, result, compressed_config, evaluator, before, uses)


def _with_distillation(
    job: CompressJob,
    result: DistillationResult,
    before: Measured,
    dense: Measured,
    after: Measured,
    uses: Sequence[DataUse],
) -> RunReport:
    """Add the distillation to the compression's report; its held-out images are those that quality is measured on."""
    report = read_report(job.work / COMPRESSED)
    assert report is not None
    assert report.totals_after is not None
    assert report.totals_before is not None
    sizes = report.totals_after.parameters, report.totals_before.parameters
    # the images that chose the structures are not measured on any more
    warnings = [text for text in report.warnings if text != HELD_OUT_CHOSE]
    return replace(
        report,
        arguments=job.request.to_dict(),
        seconds_by_step={**report.seconds_by_step, "recovery": round(result.seconds, 3)},
        data=(*report.data, *uses),
        before=dense,
        after=after,
        curve=(
            *(tried for tried in report.curve if not tried.chosen),
            candidate("before recovery", *sizes, before),
            candidate("written", *sizes, after, chosen=True),
        ),
        history=result.history,
        warnings=(*warnings, IN_VAIN if result.kl_after == result.kl_before else EPOCH_CHOSEN),
    )


def _save(
    job: CompressJob,
    result: DistillationResult,
    config: BundleConfig,
    evaluator: Evaluator,
    before: Measured,
    uses: Sequence[DataUse],
) -> CompressReport:
    """Store the distilled model as asked, measure it as it is stored, and write OUT."""
    request, size = job.request, int(config.preprocess["size"])
    quantisation = choose_storage(result.model, request.storage, evaluator.batches, size, limit=request.int8_limit)
    after = evaluator(as_stored(result.model, quantisation.storage))
    report = _with_distillation(job, result, before, evaluator.before, after, uses)
    figures = {"images": after.images, "kl": after.kl, "agreement": after.agreement}
    metrics = {**config.metrics, "recovery": figures, **quantisation.metrics(measured=True)}
    arguments = {**job.distillation_fingerprint(), "plan": dict(job.plan.to_dict()), "storage": quantisation.weights}
    provenance = add_step(config.provenance, "recover", arguments, result.seconds, input_version=config.version)
    model = result.model.cpu().requires_grad_(False)
    config = replace(config, metrics=metrics, provenance=provenance)
    return save_reported(
        job.out, model, config, report, result.seconds, overwrite=job.overwrite, storage=quantisation.storage
    )


def _claim_work(job: CompressJob, progress: Progress) -> None:
    """Claim the work folder for this run, unless it is this run's already.

    Raises:
        TrainingError: the folder belongs to another run; the message names the first difference.
    """
    folder = job.calibration_folder
    assert folder is not None
    config = read_config(job.source)
    samples = calibration_samples(job, folder, config)
    mine = {**job.fingerprint(), "from": config.version, "calibration": digest(folder, samples)}
    mine = json.loads(json.dumps(mine))  # as it will be read back
    file = job.work / "job.json"
    if file.exists() and _has_compressed(job):
        theirs = json.loads(file.read_text())
        odd = next((name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)), None)
        if odd is not None:
            raise TrainingError(
                f"{job.work} holds an unfinished run with {odd} {theirs.get(odd)!r}, not {mine.get(odd)!r}: "
                "give that run's options to go on with it, or remove the folder"
            )
        progress.note(f"going on with the unfinished run in {job.work}")
        return
    job.work.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(mine, indent=2))
    partial.replace(file)
