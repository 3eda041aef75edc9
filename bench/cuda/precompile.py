"""Compiles the Triton kernels that the rows will need on all cores, ahead of them: one process would take minutes."""

import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from typing import NamedTuple

import torch

from ...kernels.chain_ir import Gelu, Problem
from ...kernels.impls.all import all_impls
from ...kernels.tuning.chain import Chain
from .mlp import HALVES, WHOLE, layers
from .shapes import MlpShape

FAMILIES = ("triton", "triton_mlp")


class Task(NamedTuple):
    """One impl on one problem."""

    shape: MlpShape
    batch: int
    impl: str
    nblocks: int
    device: torch.device
    dtype: torch.dtype


def precompile(tasks: Sequence[Task], seconds: float) -> str:
    """Run every task once in other processes, whose compiled kernels Triton keeps on disk; one line about it.

    Args:
        seconds: after which what has not begun is left to be compiled when it is needed.
    """
    if not tasks:
        return "nothing to compile"
    began = time.perf_counter()
    workers = max(1, min(12, (os.cpu_count() or 2) - 2))
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    futures = [pool.submit(launch_once, task) for task in tasks]
    done, left = wait(futures, timeout=seconds)
    pool.shutdown(wait=bool(not left), cancel_futures=True)
    failed = [error for future in done if (error := future.exception()) is not None]
    text = f"{len(done)} of {len(tasks)} compiled by {workers} processes in {time.perf_counter() - began:.0f} s"
    return f"{text}; {len(failed)} failed, the first: {failed[0]}"[:400] if failed else text


def launch_once(task: Task) -> int:
    """Build and run whatever of the MLP the impl takes; how many segments that were."""
    problem = Problem(task.device, task.dtype, task.batch, task.shape.tokens)
    fc1, fc2 = layers(task.shape, task.nblocks, problem)
    chain = Chain((fc1, Gelu(), fc2))
    (impl,) = (impl for impl in all_impls() if impl.name == task.impl)
    ran = 0
    with torch.inference_mode():
        for span in (*WHOLE, *HALVES, (0, 1)):
            segment = chain.segment(span)
            if impl.refuses(segment, problem) is None:
                x = torch.randn(task.batch, task.shape.tokens, chain.widths[span[0]], device=task.device)
                impl.build(segment, problem)(x.to(task.dtype))
                ran += 1
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)
    return ran


def triton_tasks(
    shapes: Sequence[MlpShape], batches: Sequence[int], *, nblocks: int, device: torch.device, dtype: torch.dtype
) -> list[Task]:
    """A task for every Triton variant on every shape and batch, in the order in which they will be needed."""
    names = [impl.name for impl in all_impls() if impl.name.partition(":")[0] in FAMILIES]
    return [Task(shape, batch, name, nblocks, device, dtype) for batch in batches for shape in shapes for name in names]
