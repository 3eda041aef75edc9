"""Kernels alone on the CPU: MLPs of published shapes, dense and Monarch, in each way there is, checked and timed.

What the GPU's kernels do needs one: `bench/gpu/`, which `milkweed bench kernels` calls where there is a CUDA device.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from .gpu.rows.bench import Bench
from .gpu.rows.device import SMALL, Ceilings, measure_ceilings
from .gpu.rows.mlp import mlp_rows
from .gpu.rows.row import Row
from .gpu.rows.shapes import MLP_SHAPES, MlpShape
from .gpu.rows.timing import HostTimer
from .machine import about, torch_threads

DEFAULT_OUT = Path("bench/results/kernels.json")
GPU_OUT = Path("bench/results/gpu.json")

SHAPES = tuple(shape for shape in MLP_SHAPES if shape.name.startswith("ViT-"))

DTYPES = ("float32", "bfloat16")
NBLOCKS = (2, 4, 8)  # that all shapes can be cut into
NEEDS_GPU = (
    "the native CUDA kernels, Triton's, CUDA graphs and torch.compile's rows need a GPU: "
    "run `milkweed bench kernels` where there is one"
)

Progress = Callable[[int, int], None]
WARM_CACHE = 1 << 62  # bytes of a cache that all inputs fit in: rows are of warm inputs alone


def run(
    *,
    dtype: str = "float32",
    batches: Sequence[int] = (1, 8),
    nblocks: int = 4,
    threads: int = 1,
    rounds: int = 7,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure on the CPU; the result is plain data: machine, versions, settings, ceilings, rows.

    Args:
        rounds: in which all candidates of a row take turns; the fastest is taken.
        progress: called with shapes and batches done and in all.
    """
    load_before = os.getloadavg()
    cells = [(shape, batch) for batch in batches for shape in SHAPES]
    with torch_threads(threads), torch.inference_mode():
        rows, ceilings = _measured(cells, nblocks, getattr(torch, dtype), rounds, progress)
    rows = [replace(row, floor_us=ceilings.floor_us(row.flops, row.moved_bytes)) for row in rows]
    settings = {"dtype": dtype, "nblocks": nblocks, "threads": threads, "batches": list(batches), "rounds": rounds}
    return {
        **about("kernels", load_before),
        "device": {"device": None},
        "settings": settings,
        "ceilings": asdict(ceilings),
        "rows": [row.as_json() for row in rows if row.us is not None or row.error is not None],
        "skipped": [NEEDS_GPU],
    }


def _measured(
    cells: Sequence[tuple[MlpShape, int]], nblocks: int, dtype: torch.dtype, rounds: int, progress: Progress | None
) -> tuple[list[Row], Ceilings]:
    """The rows of all shapes and batches, and the highest that copies and products reached beside them."""
    torch.manual_seed(0)
    device, timer, rows = torch.device("cpu"), HostTimer(samples=rounds, fastest=True), list[Row]()
    ceilings = measure_ceilings(device, dtype, timer, SMALL)
    bench = Bench(device, dtype, nblocks, timer, replace(ceilings, cache_bytes=WARM_CACHE))
    impls = [impl for impl in bench.impls() if not impl.name.startswith(("native", "triton"))]
    for done, (shape, batch) in enumerate(cells, 1):
        rows += mlp_rows(shape, batch, bench, impls)
        # Others may have had the cores before: what was reached once is what there is.
        now = measure_ceilings(device, dtype, timer, SMALL)
        ceilings = replace(
            ceilings,
            bytes_per_second=max(ceilings.bytes_per_second, now.bytes_per_second),
            flops_per_second=max(ceilings.flops_per_second, now.flops_per_second),
        )
        if progress:
            progress(done, len(cells))
    return rows, ceilings
