"""`milkweed train`: a model on labelled images, structured from the start, or on from a bundle."""

import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...jobs.skipped import skipped_lines
from ..bundle_args import check_free
from ..errors import WRONG_USAGE, CommandError, one_line
from ..options import Force, Json, Out, json_object, split_list
from ..output import megabytes, note, print_fields, print_json
from ..progress import Update, progress
from .train_options import (
    Amp,
    Arch,
    ArchArgs,
    BatchSize,
    Beta2,
    Blocks,
    ClipNorm,
    ColorJitter,
    Crop,
    Cutmix,
    Data,
    DeviceName,
    Distill,
    EmaDecay,
    Epochs,
    Erase,
    EvaluateEvery,
    From,
    Gating,
    HardShare,
    HeldOut,
    HeldOutFraction,
    KeepBest,
    KeepStateAt,
    LabelSmoothing,
    Layers,
    Lr,
    MinScale,
    Mixup,
    NewHead,
    Parallel,
    Patience,
    Preprocess,
    RandAugment,
    Rank,
    S2dFraction,
    Schedule,
    Seed,
    StartAt,
    Structure,
    StructuredLr,
    Temperature,
    Threads,
    WarmupEpochs,
    WeightDecay,
    Workers,
)

if TYPE_CHECKING:
    from ...jobs.train import Hooks, TrainOutcome
    from ...jobs.train_request import TrainJob
    from ...models.training import Recipe


SMALL_PX = 64


def train(
    out: Out,
    data: Data,
    arch: Arch = None,
    arch_args: ArchArgs = None,
    held_out: HeldOut = None,
    held_out_fraction: HeldOutFraction = 0.1,
    structure: Structure = None,
    layers: Layers = "mlp",
    nblocks: Blocks = 4,
    rank: Rank = None,
    gating: Gating = True,
    schedule: Schedule = "plain",
    s2d_fraction: S2dFraction = 0.7,
    start_bundle: From = None,
    new_head: NewHead = False,
    distill: Distill = None,
    temperature: Temperature = 1.0,
    hard_share: HardShare = 0.5,
    epochs: Epochs = 30,
    batch_size: BatchSize = 128,
    lr: Lr = 1e-3,
    weight_decay: WeightDecay = 0.05,
    warmup_epochs: WarmupEpochs = 1.0,
    beta2: Beta2 = 0.999,
    clip_norm: ClipNorm = 1.0,
    label_smoothing: LabelSmoothing = 0.1,
    mixup: Mixup = 0.0,
    cutmix: Cutmix = 0.0,
    crop: Crop = "auto",
    min_scale: MinScale = 0.08,
    randaugment: RandAugment = None,
    color_jitter: ColorJitter = 0.0,
    erase: Erase = 0.0,
    ema: EmaDecay = 0.0,
    amp: Amp = "none",
    structured_lr: StructuredLr = False,
    seed: Seed = 0,
    preprocess: Preprocess = None,
    evaluate_every: EvaluateEvery = 1,
    keep_best: KeepBest = False,
    patience: Patience = None,
    keep_state_at: KeepStateAt = None,
    start_at: StartAt = None,
    parallel: Parallel = None,
    workers: Workers = 0,
    threads: Threads = None,
    device: DeviceName = "auto",
    force: Force = False,
    json: Json = False,
) -> None:
    """Train a model on labelled images, structured or dense.

    From scratch (--arch) or on from a bundle (--from). With --schedule s2d its layers are structured first and dense
    in the end. A run that was interrupted goes on where it was when the same command is given again, and ends with
    the same weights.

    \b
    Example:
      milkweed train ./mine --arch vit_tiny_patch16_224 --data ./photos \\
        --epochs 50 --randaugment rand-m9-mstd0.5
    """
    given = dict(locals())  # so many options: the parts below take theirs by name
    check_free(out, force)
    import torch

    from ...inference.device import resolve_device, use_device
    from ...jobs.train import train
    from ...models.training.parallel import joined, local_device

    if threads is not None:
        torch.set_num_threads(threads)
    where = resolve_device(device)
    given["device"] = where if parallel is None else local_device(where)
    use_device(given["device"])
    request = _request(given)
    with joined(parallel, request.device) as processes, ExitStack() as stack:
        hooks = _hooks(request, stack) if processes.rank == 0 else None
        outcome = train(request, hooks, processes=processes, command=_command())
    if outcome is None:
        return
    for line in skipped_lines([(path, error.code, error.message) for path, error in outcome.skipped.items()]):
        note(one_line(line))
    if json:
        print_json(_document(out, request, outcome))
    else:
        _print(out, outcome)


def _request(given: Mapping[str, Any]) -> "TrainJob":
    from ...jobs.train_request import TrainJob
    from ...loaders.dataset.augmentation import Augmentation

    arch_args = json_object("--arch-args", given["arch_args"])
    preprocess = json_object("--preprocess", given["preprocess"])
    named = {field.name for field in fields(TrainJob)}
    taken = {name: value for name, value in given.items() if name in named}
    return TrainJob(
        **{
            **taken,
            "recipe": _recipe(given),
            "arch_args": arch_args,
            "preprocess": preprocess,
            "layers": split_list(given["layers"]),
            "teacher": given["distill"],
            "start_state": given["start_at"],
            "keep_states_at": _epochs(given["keep_state_at"], given["epochs"]),
            "overwrite": given["force"],
            "augmentation": Augmentation(
                crop=_crop(given["crop"], given["start_bundle"], given["arch"], arch_args, preprocess),
                **{name: given[name] for name in ("min_scale", "randaugment", "color_jitter", "erase")},
            ),
        }
    )


def _recipe(given: Mapping[str, Any]) -> "Recipe":
    from ...models.training import Recipe

    taken = {field.name: given[field.name] for field in fields(Recipe) if field.name in given}
    return Recipe(
        **{
            **taken,
            "warmup_epochs": min(given["warmup_epochs"], given["epochs"]),
            "betas": (0.9, given["beta2"]),
            "clip_norm": given["clip_norm"] or None,
            "ema_decay": given["ema"] or None,
        }
    )


def _hooks(request: "TrainJob", stack: ExitStack) -> "Hooks":
    """What tells a person how far it is, until the stack ends."""
    from ...jobs.train import Hooks

    if (request.state / "state.json").exists():
        note(f"going on from the state in {request.state}")
    training: list[Update] = []

    def trained(done: int, total: int) -> None:
        if not training:
            stack.close()  # a terminal shows one bar at a time
            training.append(stack.enter_context(progress("train", "steps")))
        training[0](done, total)

    reading = stack.enter_context(progress("read", "images"))
    return Hooks(reading, trained, lambda row: note(describe(row, request.recipe.epochs)))


def _command() -> str:
    return shlex.join(["milkweed", *sys.argv[1:]])


def describe(row: Any, epochs: int) -> str:
    """A row of the history as a line for a person."""
    figures = [f"loss {row['loss']:.4f}"] if "loss" in row else []
    figures += [f"top-1 {row['top1']:.2f} %"] if "top1" in row else []
    return f"epoch {row['epoch']} of {epochs}: {', '.join(figures)}, {row['seconds']:.0f} s"


def _crop(crop: str, bundle: Path | None, arch: str | None, arch_args: Any, preprocess: Any) -> str:
    """`auto` by the side that the model sees."""
    if crop != "auto":
        return crop
    from ...models import default_preprocess, read_config

    if bundle is None and arch is None:
        return "none"  # refused for that in a moment
    own = read_config(bundle).preprocess if bundle is not None else default_preprocess(str(arch), **arch_args)
    size = {**own, **preprocess}["size"]
    return "pad" if isinstance(size, int) and size <= SMALL_PX else "resized"


def _epochs(text: str | None, most: int) -> list[int]:
    numbers = [] if text is None else split_list(text)
    for number in numbers:
        if not (number.isdecimal() and 1 <= int(number) <= most):
            raise CommandError(f"--keep-state-at {number}: must be an epoch from 1 to {most}", WRONG_USAGE)
    return [int(number) for number in numbers]


def _document(out: Path, request: "TrainJob", outcome: "TrainOutcome") -> dict[str, Any]:
    return {
        "bundle": str(out),
        "version": outcome.config.version,
        "bytes_on_disk": outcome.config.bytes_on_disk,
        "metrics": dict(outcome.config.metrics),
        "recipe": dict(request.recipe.to_dict()),
        "history": list(outcome.result.history),
        "resumed_at_step": outcome.result.resumed_at,
        "skipped": [
            {"image": str(path), "code": error.code, "message": error.message}
            for path, error in outcome.skipped.items()
        ],
        "seconds": {name: round(value, 3) for name, value in outcome.seconds_by_step.items()},
        "command": _command(),
    }


def _print(out: Path, outcome: "TrainOutcome") -> None:
    found = outcome.config.metrics["training"]["held_out"]
    training, held_out = outcome.data
    unreadable = f", {len(outcome.skipped)} unreadable and skipped" if outcome.skipped else ""
    print_fields(
        {
            "bundle": f"{out} (version {outcome.config.version}, {megabytes(outcome.config.bytes_on_disk)})",
            "images": f"{training.images} to train on, {held_out.images} held out{unreadable}",
            "top-1": f"{found['top1']:.2f} % of the held-out images",
            "epoch": found["epoch"],
            "report": out / "report.html",
            "seconds": ", ".join(f"{name} {value:.0f}" for name, value in outcome.seconds_by_step.items()),
        }
    )
