"""Options of `milkweed train`."""

from pathlib import Path
from typing import Annotated

import typer

from .options import number_option

Arch = Annotated[str | None, typer.Option("--arch", metavar="NAME", help="Architecture, from scratch; see models.")]
ArchArgs = Annotated[
    str | None, typer.Option("--arch-args", metavar="JSON|FILE", help="Arguments of the architecture, an object.")
]
Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="One folder a class, to train on.")]
HeldOut = Annotated[Path | None, typer.Option("--held-out", metavar="DIR", help="One folder a class, to measure on.")]
HeldOutFraction = Annotated[
    float,
    number_option("--held-out-fraction", "Share of DATA to measure on, without --held-out.", least=0, kind=float),
]
Structure = Annotated[
    str | None,
    typer.Option(
        "--structure",
        metavar="KIND",
        help="monarch, lowrank, blockdiag, pixelfly or dense; monarch from scratch, with --from as the bundle is.",
    ),
]
Layers = Annotated[
    str, typer.Option("--layers", metavar="LIST", help="Which: mlp, qkv, proj, names or patterns, with commas between.")
]
Blocks = Annotated[int, number_option("--nblocks", "Blocks of each factor.")]
Rank = Annotated[int | None, number_option("--rank", "Rank, where the structure has one.")]
Gating = Annotated[bool, typer.Option("--gating/--no-gating", help="Of pixelfly: learn the share of its two parts.")]
Schedule = Annotated[
    str, typer.Option("--schedule", metavar="plain|s2d", help="s2d makes structured layers dense on the way.")
]
S2dFraction = Annotated[float, number_option("--s2d-fraction", "Share of the epochs before that.", least=0, kind=float)]
From = Annotated[
    Path | None,
    typer.Option("--from", metavar="BUNDLE", help="Train on from it; with --structure its layers are projected first."),
]
NewHead = Annotated[bool, typer.Option("--new-head", help="With --from: a new classifier, for DATA's classes.")]
Distill = Annotated[Path | None, typer.Option("--distill", metavar="BUNDLE", help="Learn its answers too.")]
Temperature = Annotated[
    float, number_option("--temperature", "Of --distill: softens both answers.", least=0, kind=float)
]
HardShare = Annotated[
    float, number_option("--hard-share", "Of --distill: weight of the true classes, 0 to 1.", least=0, kind=float)
]
Epochs = Annotated[int, number_option("--epochs", "Passes over the images.")]
BatchSize = Annotated[int, number_option("--batch-size", "Images of a step, of all processes together.")]
Lr = Annotated[float, number_option("--lr", "Learning rate after the warm-up.", least=0, kind=float)]
WeightDecay = Annotated[float, number_option("--weight-decay", "Of AdamW.", least=0, kind=float)]
WarmupEpochs = Annotated[
    float, number_option("--warmup-epochs", "Epochs of warm-up, may be a part.", least=0, kind=float)
]
Beta2 = Annotated[float, number_option("--beta2", "Second beta of AdamW.", least=0, kind=float)]
ClipNorm = Annotated[
    float, number_option("--clip-norm", "Largest norm of the gradients; 0 is off.", least=0, kind=float)
]
LabelSmoothing = Annotated[float, number_option("--label-smoothing", "0 to 1.", least=0, kind=float)]
Mixup = Annotated[float, number_option("--mixup", "Alpha of mixup; 0 is off.", least=0, kind=float)]
Cutmix = Annotated[float, number_option("--cutmix", "Alpha of CutMix; 0 is off.", least=0, kind=float)]
Crop = Annotated[
    str,
    typer.Option("--crop", metavar="KIND", help="resized, pad (small images), or none; auto is pad up to 64 px."),
]
MinScale = Annotated[
    float, number_option("--min-scale", "Smallest area of --crop resized, 0 to 1.", least=0, kind=float)
]
RandAugment = Annotated[
    str | None, typer.Option("--randaugment", metavar="SPEC", help="As timm spells it, such as rand-m9-mstd0.5.")
]
ColorJitter = Annotated[float, number_option("--color-jitter", "0 to 1.", least=0, kind=float)]
Erase = Annotated[float, number_option("--erase", "Probability of random erasing.", least=0, kind=float)]
EmaDecay = Annotated[
    float, number_option("--ema", "Decay of the average of the weights; 0 is off.", least=0, kind=float)
]
Amp = Annotated[str, typer.Option("--amp", metavar="none|bfloat16|float16", help="Number type of autocast.")]
StructuredLr = Annotated[bool, typer.Option("--structured-lr", help="Rates of the factors by BTT's rule.")]
Seed = Annotated[int, number_option("--seed", "Of every random choice.", least=0)]
Preprocess = Annotated[
    str | None, typer.Option("--preprocess", metavar="JSON|FILE", help="size, crop_pct, interpolation, mean, std.")
]
EvaluateEvery = Annotated[int, number_option("--evaluate-every", "Epochs between two measurements.")]
KeepBest = Annotated[
    bool, typer.Option("--keep-best", help="Keep the epoch best on the held-out images, not the last.")
]
Patience = Annotated[
    int | None, number_option("--patience", "Stop after N measurements without a better one; keeps the best.")
]
KeepStateAt = Annotated[
    str | None,
    typer.Option("--keep-state-at", metavar="LIST", help="Keep the state after these epochs, in OUT.states."),
]
StartAt = Annotated[
    Path | None,
    typer.Option("--start-at", metavar="STATE", help="A state so kept of the plain run that begins like this one."),
]
Parallel = Annotated[
    str | None, typer.Option("--parallel", metavar="ddp|fsdp", help="Several processes, started by torchrun.")
]
Workers = Annotated[int, number_option("--workers", "Processes that decode and augment; 0 is none.", least=0)]
Threads = Annotated[int | None, number_option("--threads", "Of torch on the CPU; as torch chooses if not given.")]
DeviceName = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda[:N]", help="Where to compute.")]
