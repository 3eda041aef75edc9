"""The experiment on CIFAR-10: a small ViTAE dense, Monarch, S2D, D2S and D2S with recovery, by the product's commands.

    python -m milkweed.bench.studies.cifar10 DATA WORK

DATA holds `train/<class>/*.jpg` and `test/<class>/*.jpg`. Each model is made by `milkweed train` or `milkweed compress`
from the training images alone and measured by `milkweed evaluate` on all test images, which choose nothing. After an
interruption the same command goes on: finished models in WORK stay, `milkweed` itself takes up the one it was at.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from ..machine import machine
from .pictures import cifar10 as plot

ARCH = "vitae_basic"
ARCH_ARGS = {
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
"""A ViTAE for 32 px: three normal cells of 128 wide at 8x8 tokens, 0.73 million parameters."""

MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
PREPROCESS = {"size": 32, "crop_pct": 1.0, "interpolation": "bicubic", "mean": MEAN, "std": STD}

RECIPE: dict[str, Any] = {
    "nblocks": 4,
    "s2d_fraction": 0.7,  # of the epochs, in whole ones, after which S2D is dense
    "calibration_images": 2000,
    "recovery_epochs": 1,  # these are beside the dense model's own
    "recovery_lr": 1e-3,
    "batch_size": 64,
    "lr": 2e-3,
    "beta2": 0.99,
    "warmup_epochs": 1.0,
    "weight_decay": 0.05,
    "label_smoothing": 0.1,
    "amp": "bfloat16",
    "evaluate_every": 2,  # the test images are looked at for the curves alone: the last epoch is kept
}

TITLES = {
    "dense": "dense",
    "monarch": "Monarch",
    "s2d": "S2D",
    "d2s": "D2S, weights alone",
    "d2s_aware": "D2S, activation-aware",
    "d2s_recovered": "D2S + recovery",
}
"""The models that are compared, in the order in which they are made."""

Milkweed = Callable[[Sequence[str], Path], str]
"""Runs `milkweed` with these arguments, messages to a log file; returns what it printed."""


class ExperimentError(RuntimeError):
    """The experiment cannot go on; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the command line can change of the experiment; every model is made once for each seed."""

    epochs: int = 4
    seeds: tuple[int, ...] = (0,)
    threads: int = 1
    device: str = "cpu"

    def to_dict(self) -> dict[str, Any]:
        """All that decides the result, as JSON has it."""
        return {**asdict(self), **RECIPE, "seeds": list(self.seeds)}


def command(plan: Plan, name: str, seed: int, data: Path, folder: Path) -> list[str]:
    """The arguments of `milkweed` that make one model of one seed; `folder` holds the seed's bundles."""
    monarch = {"structure": "monarch", "layers": "mlp", "nblocks": RECIPE["nblocks"]}
    where = {"threads": plan.threads, "device": plan.device}
    if name.startswith("d2s"):
        calibrate = {"calibration": data / "train", "calibration-images": RECIPE["calibration_images"]}
        # Every parameter learns to answer as the dense model does; the images' classes are not used.
        how = {"epochs": "recovery_epochs", "lr": "recovery_lr", "batch-size": "batch_size", "amp": "amp"}
        recover = {f"recover-{option}": RECIPE[key] for option, key in how.items()}
        recover = {"recover": data / "train", **recover, "recover-trained": "all", "seed": seed}
        more = {"d2s": {}, "d2s_aware": calibrate, "d2s_recovered": {**calibrate, **recover}}[name]
        return ["compress", f"{folder / 'dense'}", f"{folder / name}", *_options({**monarch, **where, **more})]
    # The epoch after which S2D is dense, as `milkweed train` rounds it.
    shared = min(max(1, round(RECIPE["s2d_fraction"] * plan.epochs)), plan.epochs)
    state = folder / "monarch.states" / f"epoch-{shared}"
    schedule = {"schedule": "s2d", "s2d-fraction": RECIPE["s2d_fraction"], "start-at": state}
    structure = {
        "dense": {"structure": "dense"},
        "monarch": {**monarch, "keep-state-at": shared},
        "s2d": {**monarch, **schedule},
    }[name]
    names = ("evaluate_every", "batch_size", "lr", "beta2", "warmup_epochs", "weight_decay", "label_smoothing", "amp")
    recipe = {key.replace("_", "-"): RECIPE[key] for key in names}
    files = {"arch-args": folder.parent / "arch.json", "data": data / "train", "held-out": data / "test"}
    given = {"arch": ARCH, "preprocess": json.dumps(PREPROCESS), **files, "epochs": plan.epochs, **recipe, **where}
    return ["train", f"{folder / name}", *_options({**given, "seed": seed, **structure})]


def _options(values: Mapping[str, object]) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", f"{value}")]


def run(data: Path, work: Path, plan: Plan, out: Path, milkweed: Milkweed) -> dict[str, Any]:
    """Make and measure what `work` does not hold yet; write all of it to `out` after each model, and return it.

    Raises:
        ExperimentError: a command failed, or `work` belongs to another plan.
    """
    work.mkdir(parents=True, exist_ok=True)
    file = work / "plan.json"
    there = json.loads(file.read_text()) if file.exists() else plan.to_dict()
    for name, value in plan.to_dict().items():
        if there.get(name) != value:
            raise ExperimentError(f"{work} is of another plan: its {name} is {there.get(name)!r}, not {value!r}")
    _write(file, there)
    (work / "arch.json").write_text(json.dumps(ARCH_ARGS))
    rows: list[dict[str, Any]] = []
    for seed in plan.seeds:
        (work / f"seed{seed}").mkdir(exist_ok=True)
        for name in TITLES:
            rows.append(_row(name, seed, plan, data, work / f"seed{seed}", milkweed))
            document = {
                "benchmark": "cifar10",
                "date": time.strftime("%Y-%m-%d", time.gmtime()),
                "machine": machine(),
                "plan": plan.to_dict(),
                "arch_args": ARCH_ARGS,
                "rows": rows,
                "summary": summary(rows),
            }
            _write(out, document)
    return document


def _row(name: str, seed: int, plan: Plan, data: Path, folder: Path, milkweed: Milkweed) -> dict[str, Any]:
    """The figures of one model, which is made and measured if they are not there yet."""
    file, log, bundle = folder / f"{name}.json", folder / f"{name}.log", folder / name
    if file.exists():
        return dict(json.loads(file.read_text()))
    made = command(plan, name, seed, data, folder)
    if not bundle.exists():
        milkweed(made, log)
    accuracy = json.loads(milkweed(["evaluate", str(bundle), str(data / "test"), "--json"], log))
    about = json.loads(milkweed(["inspect", str(bundle), "--json"], log))
    text = shlex.join(["milkweed", *made])
    row = {
        "name": name,
        "seed": seed,
        "command": text.replace(str(folder.parent), "WORK").replace(str(data), "DATA"),
        "version": about["version"],
        "top1": accuracy["top1"],
        "correct": accuracy["correct1"],
        "images": accuracy["images"],
        "parameters": about["parameters"]["total"],
        "macs": about["macs"]["per_image"],
        "bytes_on_disk": about["bytes"]["on_disk"],
        "seconds": sum(step["seconds"] for step in about["provenance"]["commands"]),
        "history": (about.get("report") or {}).get("history", []),
    }
    _write(file, row)
    return row


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line for each model: means over the seeds; `to_dense` compares seeds that have both.

    `sampling_error` is one binomial sigma of a mean over all answers, in points: what the choice of the test images
    alone makes uncertain.
    """
    dense = {row["seed"]: row["top1"] for row in rows if row["name"] == "dense"}
    lines = []
    for name, title in TITLES.items():
        if own := [row for row in rows if row["name"] == name]:
            top1, images = fmean(row["top1"] for row in own), sum(row["images"] for row in own)
            line = {"name": name, "title": title, "seeds": [row["seed"] for row in own], "top1": round(top1, 4)}
            line["sampling_error"] = round(sqrt(top1 * (100 - top1) / images), 4)
            line["to_dense"] = round(fmean(row["top1"] - dense[row["seed"]] for row in own), 4)
            line |= {key: own[0][key] for key in ("parameters", "macs", "bytes_on_disk")}
            lines.append({**line, "seconds": round(fmean(row["seconds"] for row in own), 1)})
    return lines


def call_milkweed(arguments: Sequence[str], log: Path) -> str:
    """Run the command, and wait.

    Raises:
        ExperimentError: it failed; the message holds the last line it wrote.
    """
    with open(log, "a") as messages:
        print(f"$ milkweed {shlex.join(arguments)}", file=messages, flush=True)
        command = [sys.executable, "-P", "-m", "milkweed.cli", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=messages, text=True, check=False)
    if done.returncode:
        last = log.read_text().rstrip().rpartition("\n")[2]
        raise ExperimentError(f"milkweed {arguments[0]} ended with {done.returncode}: {last} (all of it: {log})")
    return done.stdout


def _write(file: Path, document: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.new")
    new.write_text(json.dumps(document, indent=1) + "\n")
    new.replace(file)


def main() -> None:
    """Run the experiment, print a line for each model, draw the picture beside the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--epochs", type=int, default=Plan.epochs)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(Plan.seeds))
    parser.add_argument("--threads", type=int, default=Plan.threads)
    parser.add_argument("--device", default=Plan.device)
    parser.add_argument("--out", type=Path, default=Path("bench/results/cifar10.json"))
    args = parser.parse_args()
    plan = Plan(epochs=args.epochs, seeds=tuple(args.seeds), threads=args.threads, device=args.device)
    try:
        document = run(args.data, args.work, plan, args.out, call_milkweed)
    except ExperimentError as error:
        sys.exit(f"cifar10: {error}")
    plot(document, args.out.with_suffix(".svg"))
    for line in document["summary"]:
        accuracy = f"{line['top1']:6.2f} % ± {line['sampling_error']:.2f}, to dense {line['to_dense']:+.2f}"
        print(f"{line['title']:<22} {accuracy}, {line['parameters']:,} parameters, {line['seconds'] / 60:.1f} min")


if __name__ == "__main__":
    main()
