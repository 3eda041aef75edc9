"""Options of `milkweed train`."""

from pathlib import Path
from typing import Annotated

import typer

from ..options import number_option

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
"""By the option that begins a part of the help."""

Arch = Annotated[
    str | None,
    typer.Option("--arch", metavar="NAME", help="Architecture to train from scratch; `milkweed models` lists them."),
]
ArchArgs = Annotated[
    str | None,
    typer.Option(
        "--arch-args", metavar="JSON|FILE", help="Arguments of the architecture: a JSON object or a file of one."
    ),
]
Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="Images to train on, one folder a class.")]
HeldOut = Annotated[
    Path | None, typer.Option("--held-out", metavar="DIR", help="Images to measure on, one folder a class.")
]
HeldOutFraction = Annotated[
    float,
    number_option(
        "--held-out-fraction", "Without --held-out: share of --data to measure on, 0 to 1.", least=0, kind=float
    ),
]
Structure = Annotated[
    str | None,
    typer.Option(
        "--structure",
        metavar="KIND",
        help="monarch, lowrank, blockdiag, pixelfly or dense. Not given: monarch; with --from as the bundle is.",
    ),
]
Layers = Annotated[
    str,
    typer.Option(
        "--layers", metavar="LIST", help="Which layers: mlp, qkv, proj, names or patterns, with commas between."
    ),
]
Blocks = Annotated[int, number_option("--nblocks", "Blocks of each Monarch factor.")]
Rank = Annotated[
    int | None, number_option("--rank", "Rank, where the structure has one; not given: the structure's own default.")
]
Gating = Annotated[bool, typer.Option("--gating/--no-gating", help="pixelfly: learn the share of its two parts.")]
Schedule = Annotated[
    str,
    typer.Option("--schedule", metavar="plain|s2d", help="s2d: structured first, then made dense (sparse to dense)."),
]
S2dFraction = Annotated[
    float,
    number_option(
        "--s2d-fraction", "s2d: share of the epochs before the layers are made dense, 0 to 1.", least=0, kind=float
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="BUNDLE", help="Train on from this bundle; with --structure its layers are projected first."
    ),
]
NewHead = Annotated[bool, typer.Option("--new-head", help="With --from: a new classifier, for the classes of --data.")]
Distill = Annotated[
    Path | None,
    typer.Option(
        "--distill", metavar="BUNDLE", help="Bundle of a teacher whose answers are learnt too (distillation)."
    ),
]
Temperature = Annotated[
    float, number_option("--temperature", "With --distill: above 1 softens both answers.", least=0, kind=float)
]
HardShare = Annotated[
    float, number_option("--hard-share", "With --distill: weight of the true classes, 0 to 1.", least=0, kind=float)
]
Epochs = Annotated[int, number_option("--epochs", "Passes over the images.")]
BatchSize = Annotated[int, number_option("--batch-size", "Images of one step, of all processes together.")]
Lr = Annotated[
    float, number_option("--lr", "Learning rate after the warm-up; it falls as a cosine.", least=0, kind=float)
]
WeightDecay = Annotated[float, number_option("--weight-decay", "Weight decay of AdamW.", least=0, kind=float)]
WarmupEpochs = Annotated[
    float,
    number_option(
        "--warmup-epochs", "Epochs in which the learning rate rises; may be a part of one.", least=0, kind=float
    ),
]
Beta2 = Annotated[float, number_option("--beta2", "Second beta of AdamW.", least=0, kind=float)]
ClipNorm = Annotated[
    float, number_option("--clip-norm", "Largest norm of the gradients; 0 = off.", least=0, kind=float)
]
LabelSmoothing = Annotated[
    float,
    number_option("--label-smoothing", "Share of the truth given to all classes alike, 0 to 1.", least=0, kind=float),
]
Mixup = Annotated[float, number_option("--mixup", "Alpha of mixup; 0 = off.", least=0, kind=float)]
Cutmix = Annotated[float, number_option("--cutmix", "Alpha of CutMix; 0 = off.", least=0, kind=float)]
Crop = Annotated[
    str,
    typer.Option(
        "--crop", metavar="KIND", help="resized, pad (for small images) or none; auto = pad up to 64 px, else resized."
    ),
]
MinScale = Annotated[
    float,
    number_option("--min-scale", "--crop resized: smallest share of an image's area, 0 to 1.", least=0, kind=float),
]
RandAugment = Annotated[
    str | None,
    typer.Option("--randaugment", metavar="SPEC", help="RandAugment as timm spells it, such as rand-m9-mstd0.5."),
]
ColorJitter = Annotated[
    float, number_option("--color-jitter", "Strength of colour changes, 0 to 1.", least=0, kind=float)
]
Erase = Annotated[float, number_option("--erase", "Probability of random erasing, 0 to 1.", least=0, kind=float)]
EmaDecay = Annotated[
    float,
    number_option("--ema", "Decay of the moving average of the weights, such as 0.999; 0 = off.", least=0, kind=float),
]
Amp = Annotated[
    str, typer.Option("--amp", metavar="none|bfloat16|float16", help="Number type of autocast (mixed precision).")
]
StructuredLr = Annotated[
    bool, typer.Option("--structured-lr", help="Learning rates of the factors by their shapes (BTT's rule).")
]
Seed = Annotated[int, number_option("--seed", "Seed of every random choice.", least=0)]
Preprocess = Annotated[
    str | None,
    typer.Option(
        "--preprocess", metavar="JSON|FILE", help="How images become input: size, crop_pct, interpolation, mean, std."
    ),
]
EvaluateEvery = Annotated[int, number_option("--evaluate-every", "Epochs between two measurements on held-out images.")]
KeepBest = Annotated[
    bool, typer.Option("--keep-best", help="Keep the epoch that is best on held-out images, not the last.")
]
Patience = Annotated[
    int | None, number_option("--patience", "Stop after N measurements without a better one; implies --keep-best.")
]
KeepStateAt = Annotated[
    str | None,
    typer.Option("--keep-state-at", metavar="LIST", help="Epochs after which the whole state is kept, in OUT.states."),
]
StartAt = Annotated[
    Path | None,
    typer.Option(
        "--start-at", metavar="STATE", help="Begin at such a state, of a plain run that begins like this one."
    ),
]
Parallel = Annotated[
    str | None,
    typer.Option(
        "--parallel", metavar="ddp|fsdp", help="Several processes, started by torchrun: data-parallel or sharded."
    ),
]
Workers = Annotated[
    int, number_option("--workers", "Processes that decode and augment; 0 = none beside this one.", least=0)
]
Threads = Annotated[int | None, number_option("--threads", "Threads of torch on the CPU; not given: as torch chooses.")]
DeviceName = Annotated[
    str, typer.Option("--device", metavar="auto|cpu|cuda[:N]", help="Where to compute; auto = a GPU if there is one.")
]
