"""`milkweed train` trains a model on labelled images, structured from the start, or on from a bundle."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ..bundle_args import check_free
from ..errors import WRONG_USAGE, CommandError
from ..options import filled, json_object, split_list, takes
from ..output import bundle_line, command_line, print_fields, print_json, skipped_images, sure_field
from ..progress import job_progress
from .train_options import TrainOptions

if TYPE_CHECKING:
    import torch

    from ...jobs.train_job import TrainJob
    from ...jobs.train_report import TrainOutcome
    from ...models.training import TrainingRecipe

SMALL_PX = 64


@takes(TrainOptions)
def train(options: TrainOptions) -> None:
    """Train a model on labelled images, structured or dense.

    From scratch (--arch) or on from a bundle (--from). With --schedule s2d its layers are structured first and dense
    in the end. A run that was interrupted goes on where it was when the same command is given again, and ends with
    the same weights.

    \b
    Example:
      milkweed train ./mine --arch vit_tiny_patch16_224 --data ./photos \\
        --epochs 50 --randaugment rand-m9-mstd0.5
    """
    check_free(options.out, options.force)
    import torch

    from ...inference.device import keep_freed_memory, resolve_device, use_device
    from ...jobs.train import train
    from ...models.progress import Progress
    from ...models.training.parallel import joined, local_device

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = resolve_device(options.device).for_torch
    if options.parallel is not None:
        device = local_device(device)
    use_device(device)
    keep_freed_memory(all_blocks=True)
    job = _job(options, device)
    units, row = {"read": "images", "train": "steps"}, partial(describe, epochs=options.epochs)
    shown = job_progress(units=units, row=row, resumes=True)
    with joined(options.parallel, device) as processes, shown as progress:
        rank_progress = progress if processes.rank == 0 else Progress()
        outcome = train(job, rank_progress, processes=processes, command=command_line())
    if outcome is None:
        return
    if options.json:
        print_json(_document(job, outcome))
    else:
        _print(job, outcome)


def _job(options: TrainOptions, device: "torch.device") -> "TrainJob":
    from ...jobs.train_job import TrainJob
    from ...loaders.dataset.augmentation import Augmentation

    arch_args = json_object("--arch-args", options.arch_args)
    preprocess = json_object("--preprocess", options.preprocess)
    return filled(
        TrainJob,
        options,
        recipe=_recipe(options),
        arch_args=arch_args,
        layers=split_list(options.layers),
        teacher=options.distill,
        preprocess=preprocess,
        keep_states_at=_epochs(options.keep_state_at, options.epochs),
        start_state=options.start_at,
        device=device,
        overwrite=options.force,
        augmentation=filled(Augmentation, options, crop=_crop(options, arch_args, preprocess)),
    )


def _recipe(options: TrainOptions) -> "TrainingRecipe":
    from ...models.training import TrainingRecipe

    return filled(
        TrainingRecipe,
        options,
        warmup_epochs=min(options.warmup_epochs, options.epochs),
        betas=(0.9, options.beta2),
        clip_norm=options.clip_norm or None,
        ema_decay=options.ema or None,
    )


def describe(row: Mapping[str, Any], epochs: int) -> str:
    """Describe a row of the training's history for a person."""
    figures = [f"loss {row['loss']:.4f}"] if "loss" in row else []
    figures += [f"top-1 {row['top1']:.2f} %"] if "top1" in row else []
    return f"epoch {row['epoch']} of {epochs}: {', '.join(figures)}, {row['seconds']:.0f} s"


def _crop(options: TrainOptions, arch_args: Mapping[str, Any], preprocess: Mapping[str, Any]) -> str:
    """Return the crop that is named; `auto` is decided by the size of the model's input."""
    if options.crop != "auto":
        return options.crop
    from ...models import default_preprocess, read_config

    if options.start_bundle is not None:
        defaults = read_config(options.start_bundle).preprocess
    elif options.arch is not None:
        defaults = default_preprocess(options.arch, **arch_args)
    else:
        return "none"  # the job refuses to start from nothing
    size = {**defaults, **preprocess}["size"]
    return "pad" if isinstance(size, int) and size <= SMALL_PX else "resized"


def _epochs(text: str | None, most: int) -> list[int]:
    numbers = [] if text is None else split_list(text)
    for number in numbers:
        if not (number.isdecimal() and 1 <= int(number) <= most):
            raise CommandError(f"--keep-state-at {number}: must be an epoch from 1 to {most}", WRONG_USAGE)
    return [int(number) for number in numbers]


def _document(job: "TrainJob", outcome: "TrainOutcome") -> dict[str, Any]:
    return {
        "bundle": str(job.out),
        "version": outcome.config.version,
        "bytes_on_disk": outcome.config.bytes_on_disk,
        "metrics": dict(outcome.config.metrics),
        "recipe": dict(job.recipe.to_dict()),
        "history": list(outcome.result.history),
        "resumed_at_step": outcome.result.resumed_at,
        "skipped": skipped_images(outcome.skipped),
        "seconds": {name: round(value, 3) for name, value in outcome.seconds_by_step.items()},
        "command": command_line(),
    }


def _print(job: "TrainJob", outcome: "TrainOutcome") -> None:
    figures = outcome.config.metrics["training"]["held_out"]
    training, held_out = outcome.data
    unreadable = f", {len(outcome.skipped)} unreadable and skipped" if outcome.skipped else ""
    print_fields(
        {
            "bundle": bundle_line(job.out, outcome.config),
            "images": f"{training.images} to train on, {held_out.images} held out{unreadable}",
            "top-1": f"{figures['top1']:.2f} % of the held-out images",
            **sure_field(outcome.config),
            "epoch": figures["epoch"],
            "report": job.out / "report.html",
            "seconds": ", ".join(f"{name} {value:.0f}" for name, value in outcome.seconds_by_step.items()),
        }
    )
