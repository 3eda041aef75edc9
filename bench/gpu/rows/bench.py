"""What all rows of a process are measured with: device, dtype, timer, ceilings and impls."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ....kernels.impls.all import all_impls
from ....kernels.impls.base import Impl
from ....kernels.impls.native import native_impls
from ....kernels.impls.quarantine import with_quarantine
from ....kernels.impls.triton import triton_impls
from ....models.serving.fused.device_kernels import DeviceKernels, device_kernels
from ..child import Task
from ..journal import Writer, rows
from .device import Ceilings, cache_bytes, device_for, timer_of
from .row import Row
from .timing import Timer

SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory a block on an H100, which dry runs reckon with."""


@dataclass(frozen=True)
class Bench:
    """What rows are measured with."""

    device: torch.device
    dtype: torch.dtype
    nblocks: int
    timer: Timer
    ceilings: Ceilings
    dry: bool = False

    def impls(self) -> list[Impl]:
        """All impls of this device; in a dry run the operators' CPU implementations stand for the kernels."""
        found = all_impls()
        if not self.dry:
            return found
        others = (impl for impl in found if not impl.name.startswith(("native", "triton")))
        return with_quarantine([*native_impls(on_cpu=True), *triton_impls(on_cpu=True), *others])

    def kernels(self) -> DeviceKernels:
        """The compiled kernels that are no impls."""
        return DeviceKernels("dry run", None, SHARED_LIMIT) if self.dry else device_kernels(self.device)


def family(name: str) -> str:
    """Return the name of a kernel without its tile."""
    return name.partition(":")[0]


def bench_of(task: Task, writer: Writer) -> Bench:
    """Make what a task measures with; its ceilings are those that an earlier process wrote."""
    torch.manual_seed(0)
    device = device_for(task)
    found = [row for row in rows(writer.journal.read()) if row["section"] == "ceilings"]
    copy, product = (found[-1]["bytes_per_second"], found[-1]["flops_per_second"]) if found else (0.0, 0.0)
    limits = Ceilings(copy, product, cache_bytes(device))
    return Bench(device, getattr(torch, task.dtype), task.nblocks, timer_of(device), limits, task.dry)


def write_rows(writer: Writer, unit: str, found: Iterable[Row]) -> None:
    """Write rows of a unit, whose last part is its round."""
    turn = int(unit.rpartition("/r")[2])
    for row in found:
        writer({**row.as_json(), "unit": unit, "round": turn})
