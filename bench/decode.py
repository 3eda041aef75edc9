"""Decode benchmark: encoded photographs to float32 model input, our loaders against the usual ways.

Rounds are interleaved and each row is the best of them in CPU time, which is what a shared machine disturbs
least; images a second are wall time. One thread.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module, metadata
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from ..loaders import CpuLoader, Loader, PillowLoader, PreprocessSpec, geometry
from ..loaders.dali_graph import Resample
from ..loaders.errors import LoaderError
from ..loaders.normalise import Normaliser
from ..loaders.resize import resize_crop
from .machine import machine

SPEC = PreprocessSpec(orientation="ignore")
DEFAULT_OUT = Path("bench/results/decode.json")
_PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "pillow",
    "simplejpeg",
    "opencv-python-headless",
    "nvidia-dali-cuda130",
    "numpy",
)
Load = Callable[[bytes], torch.Tensor]


def run(images: Path, out: Path | None = DEFAULT_OUT, rounds: int = 5, limit: int = 200) -> dict[str, Any]:
    """Measure every method that this machine has.

    Args:
        images: folder of JPEGs.
        out: where the JSON goes; None writes nothing.
        rounds: passes over the images a method, interleaved.
        limit: number of images, in order of their names.

    Returns:
        What is written: machine, versions, images, rows (method, cpu_ms_per_image, ...), skipped.
    """
    bodies = [path.read_bytes() for path in _photos(images)[:limit]]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        methods, skipped = _available()
        seconds = _measure(methods, bodies, rounds)
        worst = {name: _difference(load, methods["Pillow reference (ours)"], bodies) for name, load in methods.items()}
    finally:
        torch.set_num_threads(before)
    rows = [_row(name, seconds[name], len(bodies), worst[name]) for name in methods]
    report = {
        "benchmark": "decode",
        "command": " ".join(["python -m milkweed.bench.decode", *sys.argv[1:]]),
        "machine": machine(),
        "versions": _versions(),
        "spec": SPEC.to_dict(),
        "images": len(bodies),
        "mean_bytes": round(sum(map(len, bodies)) / len(bodies)),
        "rounds": rounds,
        "threads": 1,
        "rows": sorted(rows, key=lambda row: float(row["cpu_ms_per_image"])),
        "skipped": skipped,
    }
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
    return report


def table(report: dict[str, Any]) -> Table:
    """The report for people."""
    title = f"decode + resize + crop + normalise, {report['images']} images, {report['rounds']} rounds, 1 thread"
    found = Table(title=title)
    for name in ("method", "CPU ms/image", "median", "images/s", "of timm", "mean diff", "max diff"):
        found.add_column(name, justify="left" if name == "method" else "right", no_wrap=name == "method")
    timm = next((row["cpu_ms_per_image"] for row in report["rows"] if row["method"].startswith("timm")), None)
    for row in report["rows"]:
        found.add_row(
            row["method"],
            f"{row['cpu_ms_per_image']:.2f}",
            f"{row['cpu_ms_per_image_median']:.2f}",
            f"{row['images_per_second']:.0f}",
            f"{row['cpu_ms_per_image'] / timm:.2f}" if timm else "",
            f"{row['mean_difference_levels']:.4f}",
            f"{row['max_difference_levels']:.0f}",
        )
    found.caption = "\n".join(f"skipped: {name} ({why})" for name, why in report["skipped"].items())
    return found


def main() -> None:
    """Command line: `python -m milkweed.bench.decode IMAGES [--out FILE] [--rounds N] [--limit N]`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path, help="folder of JPEGs")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON report")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=200, help="number of images")
    arguments = parser.parse_args()
    Console().print(table(run(arguments.images, arguments.out, arguments.rounds, arguments.limit)))


def _photos(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.glob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not found:
        raise ValueError(f"no JPEG in {folder}: expected *.jpg or *.jpeg")
    return found


def _available() -> tuple[dict[str, Load], dict[str, str]]:
    """The methods that import here, and why the others do not."""
    makers: dict[str, Callable[[], Load]] = {
        "simplejpeg + torch (ours)": lambda: _loader(CpuLoader(SPEC)),
        "Pillow reference (ours)": lambda: _loader(PillowLoader(SPEC)),
        "DALI on the CPU (ours)": lambda: _loader(_dali("exact")),
        "DALI on the CPU, one pass (ours)": lambda: _loader(_dali("fused")),
        "Pillow + torch": _pillow_torch,
        "timm create_transform": _timm,
        "torchvision decode_jpeg + v2": _torchvision,
        "OpenCV INTER_AREA (not equal)": _opencv,
    }
    methods, skipped = {}, {}
    for name, make in makers.items():
        try:
            methods[name] = make()
        except (ImportError, RuntimeError, AttributeError, LoaderError) as error:
            skipped[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return methods, skipped


def _dali(resample: Resample) -> Loader:
    from ..loaders.dali_loader import DaliLoader

    return DaliLoader(SPEC, resample=resample, max_batch=1)


def _loader(loader: Loader) -> Load:
    def load(body: bytes) -> torch.Tensor:
        result = loader.load([body])
        if result.errors:
            raise result.errors[0]
        return result.pixels[0]

    return load


def _finish() -> Callable[[torch.Tensor], torch.Tensor]:
    """Our normalise, for methods that end in uint8 (3, S, S)."""
    normaliser = Normaliser(SPEC)

    def finish(levels: torch.Tensor) -> torch.Tensor:
        out = torch.empty(levels.shape)
        normaliser.write(levels, out)
        return out

    return finish


def _pillow_torch() -> Load:
    finish = _finish()

    def load(body: bytes) -> torch.Tensor:
        pixels = np.array(Image.open(BytesIO(body)).convert("RGB"))
        target = geometry(SPEC, pixels.shape[1], pixels.shape[0])
        return finish(resize_crop(pixels, target, SPEC.interpolation).permute(2, 0, 1))

    return load


def _timm() -> Load:
    transform = import_module("timm.data").create_transform(
        SPEC.size, interpolation=SPEC.interpolation, crop_pct=SPEC.crop_pct, is_training=False
    )

    def load(body: bytes) -> torch.Tensor:
        pixels: torch.Tensor = transform(Image.open(BytesIO(body)).convert("RGB"))
        return pixels

    return load


def _torchvision() -> Load:
    io, v2 = import_module("torchvision.io"), import_module("torchvision.transforms.v2.functional")
    finish = _finish()

    def load(body: bytes) -> torch.Tensor:
        pixels = io.decode_jpeg(torch.frombuffer(bytearray(body), dtype=torch.uint8), mode=io.ImageReadMode.RGB)
        target = geometry(SPEC, pixels.shape[2], pixels.shape[1])
        size = [target.resize_height, target.resize_width]
        resized = v2.resize(pixels, size, v2.InterpolationMode.BICUBIC, antialias=True)
        return finish(v2.crop(resized, target.top, target.left, target.size, target.size))

    load(_probe())
    return load


def _opencv() -> Load:
    cv2 = import_module("cv2")
    cv2.setNumThreads(1)
    finish = _finish()

    def load(body: bytes) -> torch.Tensor:
        pixels = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        target = geometry(SPEC, pixels.shape[1], pixels.shape[0])
        size = (target.resize_width, target.resize_height)
        resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        crop = resized[target.top : target.top + target.size, target.left : target.left + target.size]
        return finish(torch.from_numpy(cv2.cvtColor(crop, cv2.COLOR_BGR2RGB)).permute(2, 0, 1))

    return load


def _probe() -> bytes:
    """A small JPEG: a library that imports but cannot decode is found before the clock runs."""
    body = BytesIO()
    Image.new("RGB", (300, 300)).save(body, "JPEG")
    return body.getvalue()


def _measure(methods: dict[str, Load], bodies: list[bytes], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """CPU and wall seconds of every round of every method, the methods taking turns."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    for load in methods.values():
        for body in bodies[:8]:
            load(body)
    for _ in range(rounds):
        for name, load in methods.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for body in bodies:
                load(body)
            seconds[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return seconds


def _difference(load: Load, reference: Load, bodies: list[bytes]) -> tuple[float, float]:
    """Mean and largest difference to the reference, levels 0..255, over at most 50 images."""
    level = torch.tensor(SPEC.std).view(3, 1, 1) * 255
    found = [((load(body) - reference(body)) * level).abs() for body in bodies[:50]]
    return float(torch.stack([each.mean() for each in found]).mean()), max(float(each.max()) for each in found)


def _row(name: str, seconds: list[tuple[float, float]], count: int, worst: tuple[float, float]) -> dict[str, Any]:
    cpu, wall = zip(*seconds, strict=True)
    return {
        "method": name,
        "cpu_ms_per_image": round(min(cpu) / count * 1e3, 3),
        "cpu_ms_per_image_median": round(median(cpu) / count * 1e3, 3),
        "images_per_second": round(count / min(wall), 1),
        "images_per_second_median": round(count / median(wall), 1),
        "mean_difference_levels": round(worst[0], 4),
        "max_difference_levels": round(worst[1], 2),
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
