"""What compression costs in accuracy: a bundle compressed by half of a folder of photographs, measured on the other.

    python -m milkweed.bench.studies.compression BUNDLE PHOTOS WORK [--rows all80 all65 ...] [--swap] [--plot FILE.svg]

Every second photograph in sorted order calibrates and recovers, without labels; the others, named by label id, are
only measured on (`--swap` exchanges the halves). Each row is one `milkweed compress`, and may be interrupted.
"""

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ...loaders.evaluation import PreparedImages
from ...loaders.spec import PreprocessSpec
from ...models import load_bundle, read_config
from ...models.compress.measured import Measuring
from ...server.dataset import find_samples
from ..compression_plot import plot
from ..process import machine

ALL = "mlp,qkv,proj"
CALIBRATE, RECOVER = "--calibration", "--recover"

ROWS: dict[str, tuple[str, ...]] = {
    "plain-mlp62": ("--layers", "mlp", "--nblocks", "2"),
    "mlp62-uniform": ("--layers", "mlp", "--nblocks", "2", CALIBRATE),
    "mlp62": ("--layers", "mlp", "--budget", "0.625", CALIBRATE),
    "all80": ("--layers", ALL, "--budget", "0.8", CALIBRATE),
    "all65": ("--layers", ALL, "--budget", "0.65", CALIBRATE),
    "mlp62-recovered": ("--layers", "mlp", "--budget", "0.625", RECOVER),
    "all65-recovered": ("--layers", ALL, "--budget", "0.65", RECOVER),
    "mlp31-recovered": ("--layers", "mlp", "--nblocks", "4", RECOVER),
}
"""Options of `milkweed compress` by row; the folder of the calibrating half follows the last."""


@dataclass(frozen=True)
class Result:
    """One row: what was asked, what the evaluating half says, and what it took."""

    row: str
    options: str
    share: float
    top1: float
    agreement: float
    kl: float
    images: int
    seconds: float


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


def measuring(bundle: Path, folder: Path) -> Measuring:
    """The dense bundle's answers on the evaluating half."""
    model, config = load_bundle(bundle)
    samples = [(sample.path, sample.target) for sample in find_samples(folder, config.labels).samples]
    pairs = list(PreparedImages(samples, PreprocessSpec.from_dict(config.preprocess), 50))
    targets = [classes for _, classes in pairs if classes is not None]
    return Measuring.on(model, [images for images, _ in pairs], torch.cat(targets))


def seconds_taken(out: Path) -> float:
    """Of all steps, by the bundle's report: of all attempts together, if there were several."""
    return float(sum(json.loads((out / "report.json").read_text())["seconds_by_step"].values()))


def share_kept(out: Path) -> float:
    """Weights of the layers that `compress` was asked for, relative to dense."""
    report = json.loads((out / "report.json").read_text())
    rows = [row for row in report["layers"] if row["reason"]]
    return sum(row["weights"] for row in rows) / sum(row["dense_weights"] for row in rows)


def run_row(name: str, bundle: Path, folder: Path, work: Path) -> None:
    """Compress as the row says, unless that is done."""
    out = work / name
    options = list(ROWS[name])
    if options[-1] in (CALIBRATE, RECOVER):
        options.append(str(folder))
    command = [sys.executable, "-P", "-m", "milkweed.server.cli", "compress", str(bundle), str(out), *options]
    if not (out / "config.json").exists():
        with open(work / f"{name}.log", "ab") as log:
            subprocess.run([*command, "--json"], stdout=subprocess.DEVNULL, stderr=log, check=True)


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--swap", action="store_true", help="calibrate on the other half")
    parser.add_argument("--out", type=Path, default=Path("bench/results/compression.json"))
    parser.add_argument("--plot", type=Path, help="draw accuracy against size: FILE.svg or FILE.png")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    folder, other = halves(args.photos, args.work, args.swap)
    measure = measuring(args.bundle, other)
    before = measure.before
    print(f"dense: top-1 {before.top1:.1f} % of {before.images} images, calibrated on {len(list(folder.iterdir()))}")
    results: list[Result] = []
    for name in args.rows:
        run_row(name, args.bundle, folder, args.work)
        found = measure(load_bundle(args.work / name)[0])
        assert found.top1 is not None
        assert found.agreement is not None
        assert found.kl is not None
        share, seconds = share_kept(args.work / name), seconds_taken(args.work / name)
        options = " ".join(ROWS[name])
        results.append(
            Result(name, options, share, found.top1, found.agreement, found.kl, found.images, round(seconds, 1))
        )
        print(
            f"{name:<18} {100 * share:5.1f} %  top-1 {found.top1:5.1f} %  agree {found.agreement:5.1f} %  "
            f"KL {found.kl:.3f}  {seconds:.0f} s",
            flush=True,
        )
        write(args, before.top1, results)


def write(args: argparse.Namespace, dense_top1: float | None, results: list[Result]) -> None:
    """Write what is known so far."""
    document: dict[str, Any] = {
        "machine": machine(),
        "arch": read_config(args.bundle).arch,
        "halves": "swapped" if args.swap else "every second file in sorted order, from the first, calibrates",
        "dense_top1": dense_top1,
        "rows": [asdict(result) for result in results],
    }
    args.out.write_text(json.dumps(document, indent=2) + "\n")
    if args.plot:
        plot(document, args.plot)


if __name__ == "__main__":
    main()
