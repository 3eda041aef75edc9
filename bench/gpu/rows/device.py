"""What the device can do at most, and the clock that its multiprocessors run at while something is timed."""

import ctypes
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..child import Measure, Task
from ..journal import Writer
from .timing import CudaTimer, HostTimer, Timer, Timing

LARGE, SMALL, TINY = (8192, 1 << 30), (768, 1 << 24), (256, 1 << 20)
"""Side of the matrices and numbers of the copy: for a GPU, for a CPU (done before another process has its turn), for a
dry run."""

SM_CLOCK = 1
"""NVML's number of the clock of the multiprocessors."""


@dataclass(frozen=True)
class Ceilings:
    """Bytes a second that a copy moves (read plus written) and dense operations a second of a matrix product."""

    bytes_per_second: float = 0.0
    flops_per_second: float = 0.0

    def floor_us(self, work: tuple[float, float]) -> float:
        """Return the least microseconds for operations and bytes; 0 if the ceilings were not measured."""
        if not self.flops_per_second:
            return 0.0
        return 1e6 * max(work[0] / self.flops_per_second, work[1] / self.bytes_per_second)


def ceilings(task: Task, writer: Writer) -> Measure:
    """Return what measures the ceilings."""
    device = device_for(task)

    def measure(unit: str) -> None:
        found = measure_ceilings(device, getattr(torch, task.dtype), timer_of(device), TINY if task.dry else LARGE)
        writer({"unit": unit, "what": "ceilings", **asdict(found)})

    return measure


def measure_ceilings(device: torch.device, dtype: torch.dtype, timer: Timer, sizes: tuple[int, int]) -> Ceilings:
    """Measure both on random data (zeros run faster than real numbers)."""
    side, numbers = sizes
    source = torch.randn(min(numbers, 1 << 24), device=device).repeat(max(1, numbers >> 24))
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    timings = timer({"copy": lambda: target.copy_(source), "product": lambda: a @ b})
    copy, product = timings["copy"], timings["product"]
    if not isinstance(copy, Timing) or not isinstance(product, Timing):
        raise RuntimeError(f"the ceilings could not be measured: copy {copy}, product {product}")
    return Ceilings(2e6 * source.nbytes / copy.us, 2e6 * side**3 / product.us)


def device_for(task: Task) -> torch.device:
    """Return the device that a task runs on; a dry run takes one core, since other processes run beside it."""
    if not task.dry:
        return torch.device("cuda", torch.cuda.current_device())
    torch.set_num_threads(1)
    return torch.device("cpu")


def timer_of(device: torch.device) -> Timer:
    """Return what times candidates on a device."""
    return CudaTimer(device, sm_clock(device)) if device.type == "cuda" else HostTimer()


def device_facts(device: torch.device) -> dict[str, Any]:
    """Return name, size and versions of what figures belong to."""
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if device.type != "cuda":
        return {"device": str(device), **versions}
    found = torch.cuda.get_device_properties(device)
    sizes = {"multiprocessors": found.multi_processor_count, "memory_bytes": found.total_memory}
    return {"device": found.name, "capability": f"{found.major}.{found.minor}", **sizes, **versions}


def memory_used(device: torch.device) -> int:
    """Return the bytes in use: of the GPU by everybody, or in a dry run of this process."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def sm_clock(device: torch.device) -> Callable[[], float | None]:
    """Return what reads the clock of the device's multiprocessors now, MHz; it gives None where NVML does not tell."""
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    try:
        return nvml_clock(ctypes.CDLL("libnvidia-ml.so.1"), uuid)
    except OSError:
        return lambda: None


def nvml_clock(nvml: Any, uuid: str) -> Callable[[], float | None]:
    """Return what reads the clock by NVML, the library under nvidia-smi; nothing is set, clocks are only read."""
    handle, mhz = ctypes.c_void_p(), ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return lambda: None

    def read() -> float | None:
        failed = nvml.nvmlDeviceGetClockInfo(handle, SM_CLOCK, ctypes.byref(mhz))
        return None if failed else float(mhz.value)

    return read
