"""Decode benchmark: encoded photographs to float32 model input; our loaders against the usual ways, and their contract.

Five sections. `one`: one image after the other, one thread. `batches`: our loaders on batches, one thread and two.
`isolation`: batches with bad images among the photographs. `equality`: how far from the reference each loader is.
`damage`: what of damaged coded data is refused.
Rounds are interleaved and each row is the best of them in CPU time, which is what a shared machine disturbs
least; images a second are wall time.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console

from ...loaders import PreprocessSpec
from ..bodies import photos
from ..cuda.images.contract import LIMITS, Limit
from ..cuda.images.isolation import isolation
from ..process import machine
from ..quiet import quiet_stderr
from .batches import batch_rows, equality_rows, lenient_loaders, our_loaders
from .damage import damage_rows
from .methods import REFERENCE, SPEC, Load, available
from .tables import tables

DEFAULT_OUT = Path("bench/results/decode.json")
SECTIONS = ("one", "batches", "isolation", "equality", "damage")
BATCH_IMAGES = 64
"""Of a pass of the section `batches`, at most: it has many cells."""

WIDTH = 100
"""Columns where stdout is no terminal; the tables need no more."""

_PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "pillow",
    "simplejpeg",
    "opencv-python-headless",
    "nvidia-dali-cuda130",
    "nvidia-nvimgcodec-cu13",
    "numpy",
)

Report = dict[str, Any]


def run(
    images: Path,
    out: Path | None = DEFAULT_OUT,
    rounds: int = 5,
    limit: int = 200,
    sections: Collection[str] = SECTIONS,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Measure with every library that this machine has.

    Args:
        images: folder of JPEGs.
        out: where the JSON goes; None writes nothing.
        rounds: passes over the images a row, interleaved.
        limit: number of images that are timed, in order of their names; equality is of all in the folder.
        sections: of SECTIONS, what to measure.
        progress: called with sections done and in all.

    Returns:
        What is written: machine, versions, settings, skipped, and of the sections `rows`, `batches`, `isolation`,
        `equality`, `damage`.

    Raises:
        ValueError: no such section, or no JPEG in the folder.
    """
    if unknown := set(sections) - set(SECTIONS):
        raise ValueError(f"section {sorted(unknown)[0]!r}: expected {', '.join(SECTIONS)}")
    bodies = photos(images)
    report = _head(bodies[:limit], rounds)
    parts: dict[str, Callable[[], Report]] = {
        "one": lambda: _one(bodies[:limit], rounds),
        "batches": lambda: _batches(bodies[: min(limit, BATCH_IMAGES)], rounds),
        "isolation": lambda: _isolation(bodies[:limit], rounds),
        "equality": lambda: _equality(images, bodies),
        "damage": lambda: _damage(bodies[:limit], rounds),
    }
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        chosen = [name for name in SECTIONS if name in sections]
        for done, name in enumerate(chosen, 1):
            found = parts[name]()
            report["skipped"] |= found.pop("skipped")
            report |= found
            if progress is not None:
                progress(done, len(chosen))
    finally:
        torch.set_num_threads(before)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
    return report


def main() -> None:
    """Command line: `python -m milkweed.bench.decode IMAGES [--out FILE] [--rounds N] [--limit N] [--sections ...]`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, help="folder of JPEGs")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON report")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=200, help="number of images that are timed")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    given = parser.parse_args()
    report = run(given.images, given.out, given.rounds, given.limit, given.sections)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for table in tables(report):
        console.print(table)


def _head(bodies: list[bytes], rounds: int) -> Report:
    return {
        "benchmark": "decode",
        "command": " ".join(["python -m milkweed.bench.decode", *sys.argv[1:]]),
        "machine": machine(),
        "versions": _versions(),
        "spec": SPEC.to_dict(),
        "images": len(bodies),
        "mean_bytes": round(sum(map(len, bodies)) / len(bodies)),
        "rounds": rounds,
        "threads": 1,
        "rows": [],
        "skipped": {},
    }


def _one(bodies: list[bytes], rounds: int) -> Report:
    methods, skipped = available()
    seconds = _measure(methods, bodies, rounds)
    worst = {name: _difference(load, methods[REFERENCE], bodies) for name, load in methods.items()}
    rows = [_row(name, seconds[name], len(bodies), worst[name]) for name in methods]
    return {"rows": sorted(rows, key=lambda row: float(row["cpu_ms_per_image"])), "skipped": skipped}


def _batches(bodies: list[bytes], rounds: int) -> Report:
    rows, skipped = batch_rows(bodies, rounds)
    return {"batches": [row.as_json() for row in rows], "skipped": _named("batches", skipped)}


def _isolation(bodies: list[bytes], rounds: int) -> Report:
    loaders, skipped = our_loaders(PreprocessSpec())
    loaders |= lenient_loaders(PreprocessSpec())
    held = {name: (loader, _limit(name)) for name, loader in loaders.items()}
    with quiet_stderr():
        rows = isolation(held, bodies, PreprocessSpec(), rounds)
    for loader in loaders.values():
        loader.close()
    return {"isolation": [row.as_json() for row in rows], "skipped": _named("isolation", skipped)}


def _limit(loader: str) -> Limit:
    """Of a loader by its name; that it is lenient changes no pixels."""
    return LIMITS.get(loader) or LIMITS[f"dali {loader.removesuffix(' lenient')}"]


def _equality(folder: Path, bodies: list[bytes]) -> Report:
    names = [path.name for path in sorted(folder.glob("*")) if path.suffix.lower() in (".jpg", ".jpeg")]
    rows, skipped = equality_rows(dict(zip(names, bodies, strict=True)))
    return {"equality": [row.as_json() for row in rows], "skipped": _named("equality", skipped)}


def _damage(bodies: list[bytes], rounds: int) -> Report:
    lenient = lenient_loaders(SPEC)
    with quiet_stderr():
        rows = damage_rows(bodies, rounds, lenient.get("exact lenient"))
    for loader in lenient.values():
        loader.close()
    return {"damage": [row.as_json() for row in rows], "skipped": {}}


def _named(section: str, skipped: dict[str, str]) -> dict[str, str]:
    return {f"{section}: {name}": reason for name, reason in skipped.items()}


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
