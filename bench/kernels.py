"""Kernels alone on the CPU: MLPs of published shapes, dense and Monarch, in each way there is, checked and timed.

What the GPU's kernels do needs one: `bench/gpu/`, which `milkweed bench kernels` calls where there is a CUDA device.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..kernels.impls.all import all_impls
from .gpu.device import SMALL, Ceilings, measure_ceilings
from .gpu.journal import Record
from .gpu.measure import Bench
from .gpu.plan import MLP_SHAPES
from .gpu.rows import mlp_rows
from .machine import about, torch_threads

DEFAULT_OUT = Path("bench/results/kernels.json")
GPU_OUT = Path("bench/results/gpu.json")

SHAPES = tuple(name for name in MLP_SHAPES if name.startswith("ViT-"))

DTYPES = ("float32", "bfloat16")
NBLOCKS = (2, 4, 8)  # that all shapes can be cut into
NEEDS_GPU = (
    "the native CUDA kernels, Triton's, CUDA graphs and torch.compile's rows need a GPU: "
    "run `milkweed bench kernels` where there is one"
)

Progress = Callable[[int, int], None]


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
    rows = [row for row in rows if row["us"] is not None or row["error"] is not None]
    settings = {"dtype": dtype, "nblocks": nblocks, "threads": threads, "batches": list(batches), "rounds": rounds}
    return {
        **about("kernels", load_before),
        "device": {"device": None},
        "settings": settings,
        "ceilings": asdict(ceilings),
        "rows": [{**row, "floor_us": ceilings.floor_us((row["flops"], row["moved_bytes"]))} for row in rows],
        "skipped": [NEEDS_GPU],
    }


def _measured(
    cells: Sequence[tuple[str, int]], nblocks: int, dtype: torch.dtype, rounds: int, progress: Progress | None
) -> tuple[list[Record], Ceilings]:
    """The rows of all shapes and batches, and the highest that copies and products reached beside them."""
    torch.manual_seed(0)
    device, rows = torch.device("cpu"), list[Record]()
    ceilings = measure_ceilings(device, dtype, SMALL, rounds)
    impls = [impl for impl in all_impls() if not impl.name.startswith(("native", "triton"))]
    bench = Bench(device, dtype, nblocks, impls, ceilings, rounds=rounds)
    for done, (shape, batch) in enumerate(cells, 1):
        rows += mlp_rows(shape, batch, bench)
        # Others may have had the cores before: what was reached once is what there is.
        now = measure_ceilings(device, dtype, SMALL, rounds)
        ceilings = Ceilings(
            max(ceilings.bytes_per_second, now.bytes_per_second), max(ceilings.flops_per_second, now.flops_per_second)
        )
        if progress:
            progress(done, len(cells))
    return rows, ceilings
