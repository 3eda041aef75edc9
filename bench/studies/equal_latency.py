"""Dense and wider Monarch vision transformers of equal latency, trained alike: which answers better?

    python -m milkweed.bench.studies.equal_latency TRAIN HELD_OUT WORK [--pairs 192:256] [--epochs 15] [--seeds 0]
        [--device cpu] [--out FILE] [--plot FILE.png]

A pair is a dense width and the width of a model whose MLPs, qkv and proj are Monarch layers of 4 blocks. All are timed
in int8 by our CPU kernels on one thread, in turns; then each is trained on the folder TRAIN as `milkweed train` does,
the Monarch model with one learning rate and with `--structured-lr`, and measured on all images of HELD_OUT. Images have
32 px and patches 4, as for CIFAR-10. The bundles lie in WORK, with the state of what was interrupted: the same command
goes on. A row that FILE has already, perhaps of another machine, keeps its accuracy and is timed anew.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...compress.timing import time_in_turns
from ...inference.device import autocast_dtype, keep_freed_memory, resolve_device
from ...inference.forward import LanePlan
from ...inference.program import program_forward
from ...jobs.train import train
from ...jobs.train_job import DENSE, TrainJob
from ...loaders.dataset.augmentation import Augmentation
from ...models import create_model, load_bundle
from ...models.layers.select import layer_specs_for, replace_linears, select_linears
from ...models.programs.int8 import calibrate
from ...models.progress import Progress
from ...models.report.drawing import PICTURE, SERIES, figure, save_picture
from ...models.training import TrainingRecipe
from ..labels import label_ends
from ..machine import about, save

ARCH, SIZE, PATCH, HEAD_DIM, CLASSES = "vit_tiny_patch16_224", 32, 4, 64, 10
LAYERS, NBLOCKS = ("mlp", "qkv", "proj"), 4
ONE_LANE = LanePlan(micro_batch=1, lanes=1, threads=1)
PREPROCESS = {
    "size": SIZE,
    "crop_pct": 1.0,
    "interpolation": "bilinear",
    "mean": [0.4914, 0.4822, 0.4465],
    "std": [0.247, 0.2435, 0.2616],
}
"""Means and deviations are those of CIFAR-10's pixels."""


@dataclass(frozen=True)
class Variant:
    """A model of the study.

    Args:
        structured_lr: as in `TrainingRecipe`.
    """

    width: int
    monarch: bool = False
    structured_lr: bool = False

    @property
    def name(self) -> str:
        kind = "monarch" if self.monarch else "dense"
        return f"{kind}{self.width}{'lr' * self.structured_lr}"

    def arch_args(self, depth: int) -> dict[str, Any]:
        heads = self.width // HEAD_DIM
        return {"embed_dim": self.width, "depth": depth, "num_heads": heads, "img_size": SIZE, "patch_size": PATCH}

    def model(self, depth: int) -> nn.Module:
        """Make it with random weights."""
        model = create_model(ARCH, num_classes=CLASSES, **self.arch_args(depth)).eval().requires_grad_(False)
        if self.monarch:
            names = select_linears(model, LAYERS)
            replace_linears(model, layer_specs_for(model, names, "monarch", nblocks=NBLOCKS))
        return model.requires_grad_(False)


def variants_of(pairs: Sequence[tuple[int, int]]) -> list[Variant]:
    """Return the models of pairs of widths: dense, Monarch, and Monarch with rates by factor."""
    return [
        variant
        for dense, monarch in pairs
        for variant in (Variant(dense), Variant(monarch, True), Variant(monarch, True, True))
    ]


def latencies(variants: Sequence[Variant], depth: int, seconds: float | None = None) -> dict[str, float]:
    """Return milliseconds an image, eight at a time, in int8 by our kernels on one thread."""
    with ExitStack() as opened:
        forwards = {}
        for variant in variants:
            model = variant.model(depth)
            noise = torch.randn(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
            forwards[variant.name] = program_forward(model, ONE_LANE, SIZE, calibrate(model, SIZE, [noise]))
            opened.callback(forwards[variant.name].close)
        return {name: ms[8] for name, ms in time_in_turns(forwards, [8], seconds).items()}


def job_of(variant: Variant, seed: int, options: argparse.Namespace) -> TrainJob:
    """Return the training of a model: one recipe for all, but for the rates by factor."""
    device = resolve_device(options.device).for_torch
    recipe = TrainingRecipe(
        epochs=options.epochs,
        batch_size=128,
        lr=1e-3,
        warmup_epochs=1.0,
        betas=(0.9, 0.99),
        label_smoothing=0.1,
        amp=autocast_dtype(resolve_device(options.device)),
        structured_lr=variant.structured_lr,
        seed=seed,
    )
    return TrainJob(
        out=options.work / (variant.name + (f"-{seed}" if seed else "")),
        data=options.train,
        held_out=options.held_out,
        recipe=recipe,
        arch=ARCH,
        arch_args=variant.arch_args(options.depth),
        structure="monarch" if variant.monarch else DENSE,
        layers=LAYERS,
        nblocks=NBLOCKS,
        augmentation=Augmentation(crop="pad"),
        preprocess=PREPROCESS,
        evaluate_every=5,
        device=device,
    )


def trained(job: TrainJob, progress: Progress) -> Mapping[str, Any]:
    """Return the held-out figures of a training, which is done now where its bundle is not there."""
    if not (job.out / "config.json").exists():
        train(job, progress)
    config = load_bundle(job.out)[1]
    figures: Mapping[str, Any] = config.metrics["training"]["held_out"]
    seconds = config.provenance["commands"][-1].get("seconds", 0.0)
    return {**figures, "hours": round(seconds / 3600, 2), "structured_layers": len(config.structure)}


def recorded(options: argparse.Namespace) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the rows of `options.out`, by name and seed.

    Raises:
        SystemExit: its models had other epochs or blocks.
    """
    if options.out is None or not options.out.exists():
        return {}
    table = json.loads(options.out.read_text())
    if (table["epochs"], table["depth"]) != (options.epochs, options.depth):
        raise SystemExit(
            f"{options.out}: has rows of {table['epochs']} epochs and {table['depth']} blocks: give another file"
        )
    return {(row["name"], row["seed"]): row for row in table["rows"]}


def interval(top1: float, images: int) -> tuple[float, float]:
    """Return the 95 % interval of a share in percent by the normal approximation."""
    share = top1 / 100
    half = 1.96 * (share * (1 - share) / images) ** 0.5
    return 100 * (share - half), 100 * (share + half)


def picture(rows: Sequence[Mapping[str, Any]], epochs: int) -> Any:
    """Draw accuracy with its interval against milliseconds an image."""
    drawn = figure(PICTURE, 320)
    axis = drawn.subplots()
    for row in rows:
        monarch = row["name"].startswith("monarch")
        colour, away = SERIES[monarch], [[row["top1"] - row["low"]], [row["high"] - row["top1"]]]
        axis.errorbar(row["ms"], row["top1"], yerr=away, fmt="s" if monarch else "o", color=colour, capsize=3)
    axis.margins(0.35, 0.2)
    axis.set_xlabel("latency, ms/image at batch 8: int8, our CPU kernels, one thread")
    axis.set_ylabel("top-1, %")
    axis.set_title(f"{epochs} epochs; 95 % intervals of the held-out images")
    label_ends(axis, [(row["ms"], row["top1"], row["name"], SERIES[row["name"].startswith("monarch")]) for row in rows])
    return drawn


def pairs_of(text: str) -> list[tuple[int, int]]:
    """Read `192:256,384:560`.

    Raises:
        ArgumentTypeError: a width that heads of HEAD_DIM, or a Monarch one that blocks, do not divide.
    """
    try:
        pairs = [(int(dense), int(monarch)) for dense, monarch in (pair.split(":") for pair in text.split(","))]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: pairs of widths are needed, such as 192:256") from None
    if odd := [width for pair in pairs for width in pair if width < HEAD_DIM or width % HEAD_DIM]:
        raise argparse.ArgumentTypeError(f"width {odd[0]}: a multiple of {HEAD_DIM} is needed")
    return pairs


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("held_out", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--pairs", type=pairs_of, default=[(192, 256)])
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    return parser.parse_args()


def main() -> None:
    """Time and train the models, and print the row of a model when it is measured."""
    options, load = arguments(), os.getloadavg()
    options.work.mkdir(parents=True, exist_ok=True)
    variants, rows = variants_of(options.pairs), recorded(options)
    ms = latencies(variants, options.depth)
    keep_freed_memory(all_blocks=True)
    for seed, variant in product(options.seeds, variants):
        figures = rows.get((variant.name, seed)) or trained(
            job_of(variant, seed, options), Progress(note=print, row=print)
        )
        low, high = interval(figures["top1"], figures["images"])
        row = {**figures, "name": variant.name, "seed": seed, "ms": ms[variant.name], "low": low, "high": high}
        rows[variant.name, seed] = row
        print(
            f"{variant.name}, seed {seed}: {row['ms']:.3f} ms, top-1 {row['top1']:.2f} % "
            f"({low:.2f} to {high:.2f}), {row['hours']} h",
            flush=True,
        )
        if options.out is not None:
            head = about("equal_latency", load)
            save(options.out, {**head, "epochs": options.epochs, "depth": options.depth, "rows": [*rows.values()]})
    if options.plot is not None:
        save_picture(partial(picture, [*rows.values()], options.epochs), options.plot)


if __name__ == "__main__":
    main()
