"""What compression costs in accuracy: a bundle compressed by half of a folder of photographs, measured on the other.

    python -m milkweed.bench.studies.compression BUNDLE PHOTOS WORK [--rows ROW ...] [--swap] [--plot FILE.svg]

Every second photograph in sorted order calibrates and recovers, without labels; the others, named by label id, are
only measured on (`--swap` exchanges the halves). Each row is one `milkweed compress`, and may be interrupted.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...jobs.dataset import labelled_images
from ...loaders.dataset.evaluation import PreparedImages
from ...loaders.preprocess.spec import PreprocessSpec
from ...models import load_bundle
from ...models.compress.evaluator import Evaluator
from ...models.report.drawing import INK, MUTED, PICTURE, figure, save_picture
from ..labels import label_ends
from ..machine import about, save
from ..plots import BLUE, DASHED, RED, Document

Row = dict[str, Any]

ALL = "mlp,qkv,proj"
CALIBRATE, RECOVER = "--calibration", "--recover"

ROWS: dict[str, str] = {
    "plain-mlp62": "--layers mlp --nblocks 2",
    "mlp62-uniform": f"--layers mlp --nblocks 2 {CALIBRATE}",
    "mlp62": f"--layers mlp --budget 0.625 {CALIBRATE}",
    "all80": f"--layers {ALL} --budget 0.8 {CALIBRATE}",
    "all65": f"--layers {ALL} --budget 0.65 {CALIBRATE}",
    "mlp62-recovered": f"--layers mlp --budget 0.625 {RECOVER}",
    "all80-recovered": f"--layers {ALL} --budget 0.8 {RECOVER}",
    "all65-recovered": f"--layers {ALL} --budget 0.65 {RECOVER}",
    "mlp31-recovered": f"--layers mlp --nblocks 4 {RECOVER}",
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


def measuring(bundle: Path, folder: Path) -> tuple[str, Evaluator]:
    """The dense bundle's architecture, and its answers on the images of the evaluating half."""
    model, config = load_bundle(bundle)
    samples = labelled_images(folder, config.labels).samples
    batches = list(PreparedImages(samples, PreprocessSpec.from_dict(config.preprocess), 50))
    targets = [classes for _, classes in batches if classes is not None]
    return config.arch, Evaluator.on(model, [images for images, _ in batches], torch.cat(targets))


def row(name: str, bundle: Path, folder: Path, work: Path, measure: Evaluator) -> Row:
    """Compress as the row says, unless that is done; and what the evaluating half says of it."""
    out, options = work / name, ROWS[name].split()
    if options[-1] in (CALIBRATE, RECOVER):
        options.append(str(folder))
    if not (out / "config.json").exists():
        command = [sys.executable, "-P", "-m", "milkweed.cli", "compress", str(bundle), str(out), *options]
        with open(work / f"{name}.log", "ab") as log:
            subprocess.run([*command, "--json"], stdout=subprocess.DEVNULL, stderr=log, check=True)
    report = json.loads((out / "report.json").read_text())
    layers = [layer for layer in report["layers"] if layer["reason"]]  # those that `compress` was asked for
    after = measure(load_bundle(out)[0])
    return {
        "row": name,
        "options": ROWS[name],
        "share": sum(layer["weights"] for layer in layers) / sum(layer["dense_weights"] for layer in layers),
        "top1": after.top1,
        "agreement": after.agreement,
        "kl": after.kl,
        "images": after.images,
        "seconds": round(sum(report["seconds_by_step"].values()), 1),  # of all attempts together
    }


def plot(document: Document) -> Any:
    """Draw accuracy against size."""
    if not document["rows"]:
        raise ValueError("no row was measured: there is nothing to draw")
    axis, labels = figure(PICTURE, 460).subplots(), []
    for kind, colour in {"calibrated": BLUE, "recovered": RED, "plain projection": MUTED}.items():
        rows = [row for row in document["rows"] if _how_made(row["options"]) == kind]
        points = [(100 * row["share"], row["top1"]) for row in rows]
        if rows:
            axis.plot(*zip(*points, strict=True), "o", ms=8, color=colour, label=kind)
        short = [row["row"].removesuffix("-recovered").removeprefix("plain-") for row in rows]
        labels += [(*point, name, colour) for point, name in zip(points, short, strict=True)]
    dense = document["dense_top1"]
    axis.axhline(dense, color=INK, lw=1, ls=DASHED)
    axis.annotate(f"dense {dense:.1f} %", (0.01, dense), (0, 3), ("axes fraction", "data"), textcoords="offset points")
    axis.set(xlim=(0, 100), ylim=(0, 100), xlabel="weights kept of the chosen layers, %")
    axis.set_ylabel(f"top-1 of {document['rows'][0]['images']} images, %")
    axis.set_title(f"{document['arch']} compressed")
    axis.legend(loc="lower left")
    label_ends(axis, labels)
    return axis.figure


def _how_made(options: str) -> str:
    return "recovered" if RECOVER in options else "calibrated" if CALIBRATE in options else "plain projection"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each row, and write what is known after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bundle", "photos", "work"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--swap", action="store_true", help="calibrate on the other half")
    parser.add_argument("--out", type=Path, default=Path("bench/results/compression.json"))
    parser.add_argument("--plot", type=Path, help="draw accuracy against size: FILE.svg or FILE.png")
    args = parser.parse_args(arguments)
    args.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    before, (folder, other) = os.getloadavg(), halves(args.photos, args.work, args.swap)
    arch, measure = measuring(args.bundle, other)
    document: dict[str, Any] = {
        "arch": arch,
        "halves": "swapped" if args.swap else "every second file in sorted order, from the first, calibrates",
        "dense_top1": measure.before.top1,
        "rows": [],
    }
    print(f"dense: top-1 {measure.before.top1:.1f} % of {measure.before.images} images")
    for name in args.rows:
        document["rows"].append(made := row(name, args.bundle, folder, args.work, measure))
        accuracy = f"top-1 {made['top1']:5.1f} %  agree {made['agreement']:5.1f} %  KL {made['kl']:.3f}"
        print(f"{name:<18} {100 * made['share']:5.1f} %  {accuracy}  {made['seconds']:.0f} s", flush=True)
        save(args.out, {**about("compression", before), **document})
        if args.plot:
            save_picture(partial(plot, document), args.plot)


if __name__ == "__main__":
    main()
