"""Kernels alone on the CPU: MLPs of published shapes, dense and Monarch, in each way there is, checked and timed.

What the GPU's kernels do needs one: `bench/gpu.py`, which `milkweed bench kernels` calls where there is a CUDA device.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..kernels.engines.registry import all_engines
from ..kernels.operators import Problem
from ..kernels.tuning.chain import Chain
from ..kernels.tuning.tuner import TunedChain, tune_chain
from ..models.provenance import library_versions
from .cuda.ceilings import SMALL, Ceilings, measure_ceilings
from .cuda.mlp import mlp_rows
from .cuda.rows import Row
from .cuda.shapes import MLP_SHAPES, MlpShape
from .cuda.timing import HostTimer
from .process import machine, torch_threads

DEFAULT_OUT = Path("bench/results/kernels.json")
GPU_OUT = Path("bench/results/gpu.json")

SHAPES = tuple(shape for shape in MLP_SHAPES if shape.name.startswith("ViT-"))

DTYPES = ("float32", "bfloat16")
NBLOCKS = (2, 4, 8)
"""That all shapes can be cut into."""

NEEDS_GPU = (
    "the native CUDA kernels, Triton's, CUDA graphs and torch.compile's rows need a GPU: "
    "run `milkweed bench kernels` where there is one"
)

WARM_CACHE = 1 << 62
"""Bytes of a cache that all inputs fit in: rows are of warm inputs alone."""


def run(
    *,
    dtype: str = "float32",
    shapes: Sequence[MlpShape] | None = None,
    batches: Sequence[int] = (1, 8),
    nblocks: int = 4,
    threads: int = 1,
    rounds: int = 7,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Measure on the CPU; the result is plain data: machine, versions, settings, ceilings, rows.

    Args:
        shapes: SHAPES when None.
        rounds: in which all candidates of a row take turns; the fastest is taken.
        progress: called with shapes and batches done and in all.
    """
    device, numbers, load_before = torch.device("cpu"), getattr(torch, dtype), os.getloadavg()
    timer, rows = HostTimer(samples=rounds, fastest=True), list[Row]()
    engines = [engine for engine in all_engines() if not engine.name.startswith(("native", "triton"))]

    def tune(chain: Chain, problem: Problem) -> TunedChain:
        return tune_chain(chain, problem, engines)

    with torch_threads(threads), torch.inference_mode():
        torch.manual_seed(0)
        ceilings = measure_ceilings(device, numbers, timer, sizes=SMALL)
        cells = [(shape, batch) for batch in batches for shape in shapes or SHAPES]
        for done, (shape, batch) in enumerate(cells, 1):
            rows += mlp_rows(
                shape,
                batch,
                nblocks=nblocks,
                device=device,
                dtype=numbers,
                engines=engines,
                timer=timer,
                ceilings=replace(ceilings, cache_bytes=WARM_CACHE),
                tune=tune,
                compile_seconds_left=lambda: -1.0,
            )
            # Others may have had the cores before: what was reached once is what there is.
            ceilings = _higher(ceilings, measure_ceilings(device, numbers, timer, sizes=SMALL))
            if progress:
                progress(done, len(cells))
    rows = [replace(row, floor_us=ceilings.floor_us(row.flops, row.moved_bytes)) for row in rows]
    return {
        "benchmark": "kernels",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": {"device": None},
        "machine": machine(),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "versions": library_versions(),
        "settings": {
            "dtype": dtype,
            "nblocks": nblocks,
            "threads": threads,
            "batches": list(batches),
            "rounds": rounds,
        },
        "ceilings": asdict(ceilings),
        "rows": [row.as_json() for row in rows if row.us is not None or row.error is not None],
        "skipped": [NEEDS_GPU],
    }


def _higher(one: Ceilings, other: Ceilings) -> Ceilings:
    return Ceilings(
        max(one.bytes_per_second, other.bytes_per_second),
        max(one.flops_per_second, other.flops_per_second),
        one.cache_bytes,
    )
