"""TrainOptions: the arguments and options of `milkweed train`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..bundle_args import bundle_path
from ..options import (
    Force,
    Gating,
    Json,
    Layers,
    Out,
    Seed,
    Threads,
    Workers,
    decimal_option,
    number_option,
    text_option,
)

HEADINGS = {
    "--data": "Images and architecture",
    "--structure": "Structured layers",
    "--from": "Learning from another model",
    "--epochs": "Optimisation",
    "--mixup": "Augmentation",
    "--ema": "Averages and precision",
    "--seed": "The run",
    "--evaluate-every": "Measuring, stopping, keeping",
    "--parallel": "Processes and device",
}
"""The heading of each part of the help, by the option that begins the part."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The values from the command line; the fields are in the order of the help."""

    out: Out
    data: Annotated[Path, text_option("DIR", "Images to train on, one folder a class.")]
    arch: Annotated[
        str | None, text_option("NAME", "Architecture to train from scratch; `milkweed models` lists them.")
    ] = None
    arch_args: Annotated[
        str | None, text_option("JSON|FILE", "Arguments of the architecture: a JSON object or a file of one.")
    ] = None
    held_out: Annotated[Path | None, text_option("DIR", "Images to measure on, one folder a class.")] = None
    held_out_fraction: Annotated[
        float, decimal_option("Without --held-out: share of --data to measure on, 0 to 1.")
    ] = 0.1
    structure: Annotated[
        str | None,
        text_option(
            "KIND", "monarch, lowrank, blockdiag, pixelfly or dense. Not given: monarch; with --from as the bundle is."
        ),
    ] = None
    layers: Layers = "mlp"
    nblocks: Annotated[int, number_option("Blocks of each Monarch factor.")] = 4
    rank: Annotated[
        int | None, number_option("Rank, where the structure has one; not given: the structure's own default.")
    ] = None
    gating: Gating = True
    schedule: Annotated[str, text_option("plain|s2d", "s2d: structured first, then made dense (sparse to dense).")] = (
        "plain"
    )
    s2d_fraction: Annotated[
        float, decimal_option("s2d: share of the epochs before the layers are made dense, 0 to 1.")
    ] = 0.7
    start_bundle: Annotated[
        Path | None,
        text_option(
            *("BUNDLE", "Train on from this bundle; with --structure its layers are projected first.", "--from"),
            parser=bundle_path,
        ),
    ] = None
    new_head: Annotated[
        bool, typer.Option("--new-head", help="With --from: a new classifier, for the classes of --data.")
    ] = False
    distill: Annotated[
        Path | None,
        text_option("BUNDLE", "Bundle of a teacher whose answers are learnt too (distillation).", parser=bundle_path),
    ] = None
    temperature: Annotated[float, decimal_option("With --distill: above 1 softens both answers.")] = 1.0
    label_weight: Annotated[float, decimal_option("With --distill: weight of the labels, 0 to 1.")] = 0.5
    epochs: Annotated[int, number_option("Passes over the images.")] = 30
    batch_size: Annotated[int, number_option("Images of one step, of all processes together.")] = 128
    lr: Annotated[float, decimal_option("Learning rate after the warm-up; it falls as a cosine.")] = 1e-3
    weight_decay: Annotated[float, decimal_option("Weight decay of AdamW.")] = 0.05
    warmup_epochs: Annotated[
        float, decimal_option("Epochs in which the learning rate rises; may be a part of one.")
    ] = 1.0
    beta2: Annotated[float, decimal_option("Second beta of AdamW.")] = 0.999
    clip_norm: Annotated[float, decimal_option("Largest norm of the gradients; 0 = off.")] = 1.0
    label_smoothing: Annotated[float, decimal_option("Share of the truth given to all classes alike, 0 to 1.")] = 0.1
    mixup: Annotated[float, decimal_option("Alpha of mixup; 0 = off.")] = 0.0
    cutmix: Annotated[float, decimal_option("Alpha of CutMix; 0 = off.")] = 0.0
    crop: Annotated[
        str, text_option("KIND", "resized, pad (for small images) or none; auto = pad up to 64 px, else resized.")
    ] = "auto"
    min_scale: Annotated[float, decimal_option("--crop resized: smallest share of an image's area, 0 to 1.")] = 0.08
    randaugment: Annotated[
        str | None, text_option("SPEC", "RandAugment as timm spells it, such as rand-m9-mstd0.5.")
    ] = None
    color_jitter: Annotated[float, decimal_option("Strength of colour changes, 0 to 1.")] = 0.0
    blur: Annotated[float, decimal_option("Probability of a Gaussian blur, 0 to 1.")] = 0.0
    erase: Annotated[float, decimal_option("Probability of random erasing, 0 to 1.")] = 0.0
    ema: Annotated[float, decimal_option("Decay of the moving average of the weights, such as 0.999; 0 = off.")] = 0.0
    amp: Annotated[str, text_option("none|bfloat16|float16", "Number type of autocast (mixed precision).")] = "none"
    structured_lr: Annotated[
        bool, typer.Option("--structured-lr", help="Initialisation and learning rates of factors by their shapes.")
    ] = False
    seed: Seed = 0
    preprocess: Annotated[
        str | None, text_option("JSON|FILE", "How images become input: size, crop_pct, interpolation, mean, std.")
    ] = None
    evaluate_every: Annotated[int, number_option("Epochs between two measurements on held-out images.")] = 1
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="Keep the epoch that is best on held-out images, not the last.")
    ] = False
    patience: Annotated[
        int | None, number_option("Stop after N measurements without a better one; implies --keep-best.")
    ] = None
    keep_state_at: Annotated[
        str | None, text_option("LIST", "Epochs after which the whole state is kept, in OUT.states.")
    ] = None
    start_at: Annotated[
        Path | None, text_option("STATE", "Begin at such a state, of a plain run that begins like this one.")
    ] = None
    parallel: Annotated[
        str | None, text_option("ddp|fsdp", "Several processes, started by torchrun: data-parallel or sharded.")
    ] = None
    workers: Workers = 0
    threads: Threads = None
    device: Annotated[str, text_option("auto|cpu|cuda[:N]", "Where to compute; auto = a GPU if there is one.")] = "auto"
    force: Force = False
    json: Json = False
