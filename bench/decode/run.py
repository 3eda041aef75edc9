"""The decode benchmark: encoded photographs to float32 model input, by our loaders and by the usual ways.

All ways take turns. Each row is the best round in CPU time, which a shared machine disturbs least; images a second are
wall time.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ...loaders import Loader
from ..machine import machine, torch_threads
from ..turns import Spent, in_turns
from .damage import damage
from .methods import MAX_BATCH, REFERENCE, SPEC, Load, methods, one_by_one, our_loaders

DEFAULT_OUT = Path("bench/results/decode.json")
BATCHES, THREADS = (1, 8, MAX_BATCH), (1, 2)
BATCH_IMAGES = 64  # images of one pass of the section `batches`, at most: it has many cells
_PACKAGES = (
    *("torch", "torchvision", "timm", "pillow", "simplejpeg", "opencv-python-headless"),
    *("nvidia-dali-cuda130", "nvidia-nvimgcodec-cu13", "numpy"),
)

Report = dict[str, Any]


def run(
    bodies: Sequence[bytes],
    *,
    rounds: int = 5,
    sections: Collection[str] = ("one", "batches", "damage"),
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Measure with every library that this machine has.

    Args:
        bodies: JPEGs.
        rounds: passes over the images for each row.
        sections: those of SECTIONS that are measured.
        progress: called with sections done and in all.

    Returns:
        Machine, versions, settings, what was skipped, and of the sections `rows`, `batches`, `damage`.
    """
    here = {distribution.metadata["Name"].lower(): distribution.version for distribution in distributions()}
    report: Report = {
        "benchmark": "decode",
        "machine": machine(),
        "versions": {package: here[package] for package in _PACKAGES if package in here},
        "spec": SPEC.to_dict(),
        "images": len(bodies),
        "mean_bytes": round(sum(map(len, bodies)) / len(bodies)),
        "rounds": rounds,
        "threads": 1,
        "rows": [],
        "skipped": {},
    }
    chosen = [measure for name, measure in SECTIONS.items() if name in sections]
    with torch_threads(1):
        for done, measure in enumerate(chosen, 1):
            found = measure(bodies, rounds)
            report["skipped"] |= found.pop("skipped", {})
            report |= found
            if progress is not None:
                progress(done, len(chosen))
    return report


def one(bodies: Sequence[bytes], rounds: int) -> Report:
    """Every way, one image after the other; and how far its pixels are from the reference's."""
    ways, skipped = methods()
    for load in ways.values():
        one_by_one(load, bodies[:8])
    spent = in_turns({name: partial(one_by_one, load, bodies) for name, load in ways.items()}, rounds, warm_up=0)
    rows = [
        {"method": name, **_figures(spent[name], len(bodies)), **_difference(load, ways[REFERENCE], bodies[:50])}
        for name, load in ways.items()
    ]
    return {"rows": sorted(rows, key=lambda row: float(row["cpu_ms_per_image"])), "skipped": skipped}


def batches(
    bodies: Sequence[bytes], rounds: int, sizes: Sequence[int] = BATCHES, threads: Sequence[int] = THREADS
) -> Report:
    """Our loaders by batch and threads; CPU time is the process's, DALI's own threads included."""
    bodies = bodies[:BATCH_IMAGES]
    cells: dict[str, tuple[str, int, int, Loader]] = {}
    for count in threads:
        loaders, skipped = our_loaders(count)
        cells |= {f"{name}, {b}, {count}": (name, b, count, each) for name, each in loaders.items() for b in sizes}
    for _, size, _, loader in cells.values():
        loader.load(bodies[:size])
    calls = {cell: partial(_in_batches, loader, bodies, size) for cell, (_, size, _, loader) in cells.items()}
    spent = in_turns(calls, rounds, warm_up=0)
    rows = []
    for cell, (name, size, count, loader) in cells.items():
        loader.close()
        rows.append({"loader": name, "batch": size, "threads": count, **_figures(spent[cell], len(bodies))})
    rows.sort(key=lambda row: (row["loader"], row["batch"], row["threads"]))
    return {"batches": rows, "skipped": {f"batches: {name}": reason for name, reason in skipped.items()}}


SECTIONS: dict[str, Callable[[Sequence[bytes], int], Report]] = {"one": one, "batches": batches, "damage": damage}


def _in_batches(loader: Loader, bodies: Sequence[bytes], size: int) -> None:
    for start in range(0, len(bodies), size):
        loader.load(bodies[start : start + size])


def _figures(spent: Spent, images: int) -> dict[str, float]:
    wall, cpu = zip(*spent, strict=True)
    return {
        "cpu_ms_per_image": round(min(cpu) / images, 3),
        "cpu_ms_per_image_median": round(median(cpu) / images, 3),
        "images_per_second": round(1e3 * images / min(wall), 1),
        "images_per_second_median": round(1e3 * images / median(wall), 1),
    }


def _difference(load: Load, reference: Load, bodies: Sequence[bytes]) -> dict[str, float]:
    """Mean and largest difference from the reference, in levels 0..255."""
    level = torch.tensor(SPEC.std).view(3, 1, 1) * 255
    found = torch.stack([((load(body) - reference(body)) * level).abs() for body in bodies])
    return {
        "mean_difference_levels": round(float(found.mean()), 4),
        "max_difference_levels": round(float(found.max()), 2),
    }
