"""What the CIFAR-10 experiment makes: the architecture, the recipe all models share, and the commands for each."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

ARCH = "vitae_basic"

# The channel statistics are CIFAR-10's, the usual ones.
PREPROCESS = {
    "size": 32,
    "crop_pct": 1.0,
    "interpolation": "bicubic",
    "mean": [0.4914, 0.4822, 0.4465],
    "std": [0.2470, 0.2435, 0.2616],
}


def arch_args() -> dict[str, Any]:
    """A ViTAE for 32 px: three normal cells of 128 wide at 8x8 tokens, of 0.73 million parameters."""
    return {
        "img_size": 32,
        "embed_dims": [32, 32, 64],
        "token_dims": [32, 64, 128],
        "downsample": [2, 2, 1],
        "kernel_sizes": [3, 3, 3],
        "dilations": [[1, 2, 3], [1, 2], [1, 2]],
        "depths": [0, 0, 3],
        "num_heads": [1, 1, 4],
        "mlp_ratio": 2,
        "groups": [1, 1, 16],
    }


@dataclass(frozen=True)
class Sibling:
    """One of the models that are compared."""

    name: str
    title: str


SIBLINGS = (
    Sibling("dense", "dense"),
    Sibling("monarch", "Monarch"),
    Sibling("s2d", "S2D"),
    Sibling("d2s", "D2S, weights alone"),
    Sibling("d2s_aware", "D2S, activation-aware"),
    Sibling("d2s_recovered", "D2S + recovery"),
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What decides the result, the same for all models.

    Args:
        epochs: of dense, Monarch and S2D alike.
        nblocks: of the MLPs' Monarch layers.
        s2d_fraction: share of the epochs, in whole epochs, after which S2D is dense.
        calibration_images: that the activation-aware projection sees.
        recovery_epochs, recovery_lr: of D2S + recovery, after the dense model's own.
        evaluate_every: epochs between two looks at the test images, for the curves alone.
        seeds: every model is made once a seed.
    """

    epochs: int = 4
    nblocks: int = 4
    s2d_fraction: float = 0.7
    calibration_images: int = 2000
    recovery_epochs: int = 1
    recovery_lr: float = 1e-3
    batch_size: int = 64
    lr: float = 2e-3
    beta2: float = 0.99
    warmup_epochs: float = 1.0
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    amp: str = "bfloat16"
    evaluate_every: int = 2
    seeds: tuple[int, ...] = (0,)
    threads: int = 1
    device: str = "cpu"

    @property
    def s2d_epoch(self) -> int:
        """The epoch after which S2D is dense, as `milkweed train` rounds it."""
        return min(max(1, round(self.s2d_fraction * self.epochs)), self.epochs)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {**asdict(self), "seeds": list(self.seeds)}

    def options(self) -> list[str]:
        """What the command line was given to make this plan."""
        given = ["--epochs", str(self.epochs), "--seeds", *map(str, self.seeds), "--threads", str(self.threads)]
        return [*given, "--device", self.device]


def command(plan: Plan, name: str, seed: int, data: Path, folder: Path) -> list[str]:
    """What `milkweed` is given to make one model of one seed.

    Args:
        folder: of the seed's bundles; `arch.json` lies beside it.
    """
    dense, train, images = str(folder / "dense"), ["train", str(folder / name)], str(data / "train")
    common = _training(plan, seed, data, folder)
    where = ["--threads", str(plan.threads), "--device", plan.device]
    monarch = ["--structure", "monarch", "--layers", "mlp", "--nblocks", str(plan.nblocks)]
    project = ["compress", dense, str(folder / name), *monarch, *where]
    calibrate = ["--calibration", images, "--calibration-images", str(plan.calibration_images)]
    if name == "dense":
        return [*train, *common, "--structure", "dense"]
    if name == "monarch":
        return [*train, *common, *monarch, "--keep-state-at", str(plan.s2d_epoch)]
    if name == "s2d":
        shared = folder / "monarch.states" / f"epoch-{plan.s2d_epoch}"
        schedule = ["--schedule", "s2d", "--s2d-fraction", f"{plan.s2d_fraction:g}", "--start-at", str(shared)]
        return [*train, *common, *monarch, *schedule]
    if name == "d2s":
        return project
    if name == "d2s_aware":
        return [*project, *calibrate]
    return [*project, *calibrate, *_recovery(plan, seed, images)]


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a model: means over the seeds that are there, and what sampling the test images alone makes uncertain.

    `sampling_error` is one binomial sigma of a mean over all answers, in points; `to_dense` compares seeds that have
    both.
    """
    dense = {row["seed"]: row["top1"] for row in rows if row["name"] == "dense"}
    lines = []
    for sibling in SIBLINGS:
        own = [row for row in rows if row["name"] == sibling.name]
        if not own:
            continue
        top1 = fmean(row["top1"] for row in own)
        images = sum(row["images"] for row in own)
        lines.append(
            {
                "name": sibling.name,
                "title": sibling.title,
                "seeds": [row["seed"] for row in own],
                "top1": round(top1, 4),
                "sampling_error": round(sqrt(top1 * (100 - top1) / images), 4),
                "to_dense": round(fmean(row["top1"] - dense[row["seed"]] for row in own), 4),
                "parameters": own[0]["parameters"],
                "macs": own[0]["macs"],
                "bytes_on_disk": own[0]["bytes_on_disk"],
                "seconds": round(fmean(row["seconds"] for row in own), 1),
            }
        )
    return lines


def _recovery(plan: Plan, seed: int, images: str) -> list[str]:
    """Every parameter learns to answer as the dense model does; the images' classes are not used."""
    options = {
        "recover": images,
        "recover-epochs": plan.recovery_epochs,
        "recover-lr": plan.recovery_lr,
        "recover-batch-size": plan.batch_size,
        "recover-trained": "all",
        "recover-amp": plan.amp,
        "seed": seed,
    }
    return _spelled(options)


def _training(plan: Plan, seed: int, data: Path, folder: Path) -> list[str]:
    """What every `milkweed train` is given. The test images are only looked at on the way: the last epoch is kept."""
    options = {
        "arch": ARCH,
        "arch-args": folder.parent / "arch.json",
        "preprocess": json.dumps(PREPROCESS),
        "data": data / "train",
        "held-out": data / "test",
        "evaluate-every": plan.evaluate_every,
        "epochs": plan.epochs,
        "batch-size": plan.batch_size,
        "lr": plan.lr,
        "beta2": plan.beta2,
        "warmup-epochs": plan.warmup_epochs,
        "weight-decay": plan.weight_decay,
        "label-smoothing": plan.label_smoothing,
        "amp": plan.amp,
        "threads": plan.threads,
        "device": plan.device,
        "seed": seed,
    }
    return _spelled(options)


def _spelled(options: dict[str, Any]) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name}", f"{value}")]
