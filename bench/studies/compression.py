"""What compression costs in accuracy: a bundle compressed by half of a folder of photographs, measured on the other.

    python -m milkweed.bench.studies.compression BUNDLE PHOTOS WORK [--rows all80 all65 ...] [--swap] [--forms]
        [--plot FILE.svg]

Every second photograph in sorted order calibrates and recovers, without labels; the others, named by label id, are
only measured on (`--swap` exchanges the halves). Each row is one `milkweed compress`, and may be interrupted.
`--forms` measures it by our CPU kernels and OpenVINO too, in bfloat16 and int8.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...inference.forward import Forward
from ...jobs.dataset import labelled_images
from ...jobs.search.runs import log_probabilities
from ...jobs.search.timing import time_in_turns
from ...loaders.dataset.evaluation import PreparedImages
from ...loaders.preprocess.spec import PreprocessSpec
from ...models import BundleConfig, load_bundle, read_config
from ...models.compress.measured import Measuring
from ...models.onnx.quantize import MIN_IMAGES
from ..machine import machine
from .levers import BATCHES, forwards
from .pictures import compression as plot

ALL = "mlp,qkv,proj"
CALIBRATE, RECOVER = "--calibration", "--recover"

ROWS: dict[str, tuple[str, ...]] = {
    "plain-mlp62": ("--layers", "mlp", "--nblocks", "2"),
    "mlp62-uniform": ("--layers", "mlp", "--nblocks", "2", CALIBRATE),
    "mlp62": ("--layers", "mlp", "--budget", "0.625", CALIBRATE),
    "all80": ("--layers", ALL, "--budget", "0.8", CALIBRATE),
    "all65": ("--layers", ALL, "--budget", "0.65", CALIBRATE),
    "mlp62-recovered": ("--layers", "mlp", "--budget", "0.625", RECOVER),
    "all80-recovered": ("--layers", ALL, "--budget", "0.8", RECOVER),
    "all65-recovered": ("--layers", ALL, "--budget", "0.65", RECOVER),
    "mlp31-recovered": ("--layers", "mlp", "--nblocks", "4", RECOVER),
}
"""Options of `milkweed compress` by row; the folder of the calibrating half follows the last."""


def halves(photos: Path, work: Path, swap: bool) -> tuple[Path, Path]:
    """Folders of links to the photographs that calibrate and to those that are measured on."""
    files = sorted(path for path in photos.iterdir() if path.is_file())
    folders = work / "calibrating", work / "evaluating"
    for place, folder in enumerate(folders):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path in files[(place + swap) % 2 :: 2]:
            (folder / path.name).symlink_to(path.resolve())
    return folders


def prepared(config: BundleConfig, folder: Path) -> list[tuple[Tensor, Tensor | None]]:
    """A folder's images as the model takes them, with their classes, fifty at a time."""
    samples = labelled_images(folder, config.labels).samples
    return list(PreparedImages(samples, PreprocessSpec.from_dict(config.preprocess), 50))


def measuring(bundle: Path, folder: Path) -> tuple[str, Measuring]:
    """The dense bundle's architecture, and its answers on the evaluating half."""
    model, config = load_bundle(bundle)
    pairs = prepared(config, folder)
    targets = [classes for _, classes in pairs if classes is not None]
    return config.arch, Measuring.on(model, [images for images, _ in pairs], torch.cat(targets))


def forms(bundles: Mapping[str, Path], folder: Path, work: Path, measure: Measuring) -> list[dict[str, Any]]:
    """Bundles by OpenVINO and by our CPU kernels, in bfloat16 and int8: accuracy, and milliseconds an image in turns.

    Args:
        bundles: by name; the first is the dense one, from which the others were made.
        folder: its images calibrate int8.
    """
    found, made = list[dict[str, Any]](), dict[str, Forward]()
    calibrating = prepared(read_config(next(iter(bundles.values()))), folder)
    images = torch.cat([images for images, _ in calibrating])
    images = images[:: len(images) // MIN_IMAGES]
    with ExitStack() as opened:
        for name, bundle in bundles.items():
            for form, forward in forwards(name, load_bundle(bundle)[0], work, images, trained=True):
                opened.callback(forward.close)
                made[form] = forward
                after = measure.of_answers(log_probabilities(forward, measure.batches))
                found.append({"form": form, "top1": after.top1, "agreement": after.agreement, "kl": after.kl})
        times = time_in_turns(made, BATCHES)
    for row in found:
        row["ms"] = times[row["form"]]
        ms = ", ".join(f"{row['ms'][batch]:.2f} ms at {batch}" for batch in BATCHES)
        print(f"{row['form']:<42} top-1 {row['top1']:5.1f} %  KL {row['kl']:.4f}  {ms}", flush=True)
    return found


def row(name: str, bundle: Path, folder: Path, work: Path, measure: Measuring) -> dict[str, Any]:
    """Compress as the row says, unless that is done; and what the evaluating half says of it."""
    out, options = work / name, [*ROWS[name]]
    if options[-1] in (CALIBRATE, RECOVER):
        options.append(str(folder))
    if not (out / "config.json").exists():
        command = [sys.executable, "-P", "-m", "milkweed.cli", "compress", str(bundle), str(out), *options]
        with open(work / f"{name}.log", "ab") as log:
            subprocess.run([*command, "--json"], stdout=subprocess.DEVNULL, stderr=log, check=True)
    report = json.loads((out / "report.json").read_text())
    layers = [layer for layer in report["layers"] if layer["reason"]]  # those that `compress` was asked for
    found = measure(load_bundle(out)[0])
    return {
        "row": name,
        "options": " ".join(ROWS[name]),
        "share": sum(layer["weights"] for layer in layers) / sum(layer["dense_weights"] for layer in layers),
        "top1": found.top1,
        "agreement": found.agreement,
        "kl": found.kl,
        "images": found.images,
        "seconds": round(sum(report["seconds_by_step"].values()), 1),  # of all attempts together
    }


def main() -> None:
    """Print a line for each row, and write what is known after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bundle", "photos", "work"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--swap", action="store_true", help="calibrate on the other half")
    parser.add_argument("--forms", action="store_true", help="measure the dense model and all rows so too")
    parser.add_argument("--out", type=Path, default=Path("bench/results/compression.json"))
    parser.add_argument("--plot", type=Path, help="draw accuracy against size: FILE.svg or FILE.png")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    folder, other = halves(args.photos, args.work, args.swap)
    arch, measure = measuring(args.bundle, other)
    document: dict[str, Any] = {
        "benchmark": "compression",
        "machine": machine(),
        "arch": arch,
        "halves": "swapped" if args.swap else "every second file in sorted order, from the first, calibrates",
        "dense_top1": measure.before.top1,
        "rows": [],
    }
    print(f"dense: top-1 {measure.before.top1:.1f} % of {measure.before.images} images")
    for name in args.rows:
        document["rows"].append(found := row(name, args.bundle, folder, args.work, measure))
        accuracy = f"top-1 {found['top1']:5.1f} %  agree {found['agreement']:5.1f} %  KL {found['kl']:.3f}"
        print(f"{name:<18} {100 * found['share']:5.1f} %  {accuracy}  {found['seconds']:.0f} s", flush=True)
        args.out.write_text(json.dumps(document, indent=2) + "\n")
        if args.plot:
            plot(document, args.plot)
    if args.forms:
        bundles = {"dense": args.bundle, **{name: args.work / name for name in args.rows}}
        document["forms"] = forms(bundles, folder, args.work, measure)
        args.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
