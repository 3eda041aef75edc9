"""What all rows of a process are measured with: device, dtype, impls, timer, ceilings."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ....kernels.impls.all import all_impls
from ....kernels.impls.base import Impl
from ....kernels.impls.native import native_impls
from ....kernels.impls.quarantine import with_quarantine
from ....kernels.impls.triton import triton_impls
from ....models.serving.fused.device_kernels import DeviceKernels, device_kernels
from ..child import Measure, Task
from ..journal import Record, Writer, rows
from .device import Ceilings, device_for, timer_of
from .timing import Timer

SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory a block on an H100, which dry runs reckon with."""


@dataclass(frozen=True)
class Bench:
    """What rows are measured with.

    Args:
        earlier: the rows that there were before this process.
    """

    device: torch.device
    dtype: torch.dtype
    nblocks: int
    impls: Sequence[Impl]
    timer: Timer
    ceilings: Ceilings
    earlier: Sequence[Record] = ()
    dry: bool = False

    def kernels(self) -> DeviceKernels:
        """The compiled kernels that are no impls."""
        return DeviceKernels("dry run", None, SHARED_LIMIT) if self.dry else device_kernels(self.device)


def impls_for(dry: bool) -> list[Impl]:
    """Return all impls; in a dry run the kernels' CPU implementations stand for them."""
    found = all_impls()
    others = [impl for impl in found if not impl.name.startswith(("native", "triton"))]
    return with_quarantine([*native_impls(on_cpu=True), *triton_impls(on_cpu=True), *others]) if dry else found


def timed(task: Task, writer: Writer) -> Measure:
    """Return what measures a unit `section/name/batch/r1` of a module beside this one, and writes its rows."""
    make = getattr(importlib.import_module(f"{__package__}.{task.section}"), f"{task.section}_rows")
    bench = bench_of(task, writer)

    @torch.inference_mode()
    def measure_unit(unit: str) -> None:
        _, name, batch, turn = unit.split("/")
        for row in make(name, int(batch), bench):
            writer({**row, "unit": unit, "round": int(turn.removeprefix("r"))})

    return measure_unit


def bench_of(task: Task, writer: Writer) -> Bench:
    """Make what a task measures with; its ceilings are those that an earlier process wrote."""
    torch.manual_seed(0)
    device, earlier = device_for(task), rows(writer.journal.read())
    found = [row for row in earlier if row["section"] == "ceilings"]
    limits = Ceilings(found[-1]["bytes_per_second"], found[-1]["flops_per_second"]) if found else Ceilings()
    dtype = getattr(torch, task.dtype)
    return Bench(device, dtype, task.nblocks, impls_for(task.dry), timer_of(device), limits, earlier, task.dry)


def best_names(found: Sequence[Record]) -> set[str]:
    """Return the names of impls that rows of MLPs and attention have timed, each the best of its family."""
    timed = [row for row in found if row["section"] in ("mlp", "attention") and row["us"]]
    return {name for row in timed for name in row["impls"]}
