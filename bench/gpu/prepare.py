"""Gets ready what rows need: the kernel library, and Triton's kernels, compiled on all cores before any timing."""

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import torch

from ... import kernels
from ...kernels.impls.all import all_impls
from ...kernels.impls.base import family
from ...kernels.native import build
from ...kernels.native.library import native_status
from ...kernels.native.stamp import source_hash
from .child import Measure, Task
from .journal import Absent, Writer
from .plan import TRITON
from .rows.bench import Bench
from .rows.device import Ceilings, device_facts, device_for
from .rows.shapes import DRY, GOAL_SHAPES
from .rows.timing import HostTimer
from .smoke import MANY_ROWS, ROWS, cases, inputs

WORKERS = 12
PRECOMPILE_SECONDS = 50.0
SUFFIXES = {".py", ".cu", ".cuh", ".h"}


def library(task: Task, writer: Writer) -> Measure:
    """Return what writes the device's facts and sees to it that the kernel library is there."""

    def measure(unit: str) -> None:
        if not task.dry and not torch.cuda.is_available():
            raise Absent("no CUDA device")
        device = device_for(task)
        writer({"kind": "device", **device_facts(device), "sources": sources_hash()})
        if task.dry:
            return
        status = native_status(device)
        if not status.loaded:
            print(f"{status}: building")
            if build.main(["--arch", "native"]) == 0:
                status = native_status(device)
        if not status.loaded:
            raise Absent(str(status))

    return measure


def sources_hash() -> str:
    """Return the hash of the kernels' sources; figures of other sources are not gone on with."""
    root = Path(kernels.__file__).resolve().parent
    return source_hash(root, SUFFIXES)[:16]


class Launch(NamedTuple):
    """One impl on one shape."""

    shape: str
    impl: str
    nblocks: int
    device: torch.device
    dtype: torch.dtype


def precompile(task: Task, writer: Writer) -> Measure:
    """Return what launches Triton's tiles on all that the smoke test and the goals' MLPs ask of them.

    It does so in processes that end with this one's time. Triton keeps compiled kernels on disk, where later processes
    find them.
    """
    device, dtype = device_for(task), getattr(torch, task.dtype)
    names = [impl.name for impl in all_impls() if family(impl.name) in TRITON]
    shapes, names = ([DRY], names[:1]) if task.dry else (GOAL_SHAPES, names)
    wanted = [Launch(shape, name, task.nblocks, device, dtype) for shape in shapes for name in names]

    def measure(unit: str) -> None:
        done, failed = launch_all(wanted, PRECOMPILE_SECONDS)
        note = f"{len(failed)} failed, the first: {failed[0]}"[:300] if failed else ""
        writer({"unit": unit, "what": "Triton", "launched": done, "of": len(wanted), "note": note})

    return measure


def launch_all(wanted: list[Launch], seconds: float) -> tuple[int, list[str]]:
    """Launch each once, in other processes; return how many were, and why others failed.

    Args:
        seconds: after these the processes are killed; what they have not compiled is compiled when it is needed.
    """
    until = time.monotonic() + seconds
    workers = max(1, min(WORKERS, (os.cpu_count() or 2) - 2, len(wanted)))
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    futures = [pool.submit(launch_once, one) for one in wanted]
    done, _ = wait(futures, timeout=until - time.monotonic())
    pool.shutdown(wait=False, cancel_futures=True)
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    errors = [future.exception() for future in done]
    return len(done), [str(error) for error in errors if error is not None]


def launch_once(one: Launch) -> int:
    """Run every case of the smoke test that an impl takes on a shape, unchecked; return how many those were."""
    bench = Bench(one.device, one.dtype, one.nblocks, (), HostTimer(), Ceilings(), dry=one.shape == DRY)
    ran = 0
    with torch.inference_mode():
        for case in cases(family(one.impl), bench, (*ROWS, MANY_ROWS)):
            if case.tile == one.impl and case.what.startswith(f"{one.shape} "):
                case.make()(*inputs(case, bench))
                ran += 1
        if one.device.type == "cuda":
            torch.cuda.synchronize(one.device)
    return ran
