"""What the device can do at most, and the clock that its multiprocessors run at while something is timed."""

import ctypes
from collections.abc import Callable
from dataclasses import asdict, dataclass
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

    bytes_per_second: float
    flops_per_second: float
    cache_bytes: int

    def floor_us(self, flops: float, moved_bytes: float) -> float:
        """Return the least microseconds that a kernel with this work takes; 0 if the ceilings were not measured."""
        if not self.flops_per_second:
            return 0.0
        return 1e6 * max(flops / self.flops_per_second, moved_bytes / self.bytes_per_second)


def ceilings(task: Task, writer: Writer) -> Measure:
    """Return what measures the ceilings."""
    device = device_for(task)

    def measure(unit: str) -> None:
        found = measure_ceilings(device, getattr(torch, task.dtype), timer_of(device), TINY if task.dry else LARGE)
        copy, product = found.bytes_per_second / 1e12, found.flops_per_second / 1e12
        print(f"copy {copy:.2f} TB/s, {task.dtype} product {product:.0f} TFLOP/s")
        writer({"unit": unit, "what": "ceilings", **asdict(found)})

    return measure


def measure_ceilings(device: torch.device, dtype: torch.dtype, timer: Timer, sizes: tuple[int, int]) -> Ceilings:
    """Measure both on random data (zeros run faster than real numbers)."""
    side, numbers = sizes
    source = torch.randn(min(numbers, 1 << 24), device=device).repeat(max(1, numbers >> 24))
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    timings = timer({"copy": [lambda: target.copy_(source)], "product": [lambda: a @ b]})
    copy, product = timings["copy"], timings["product"]
    if not isinstance(copy, Timing) or not isinstance(product, Timing):
        raise RuntimeError(f"the ceilings could not be measured: copy {copy}, product {product}")
    return Ceilings(2e6 * source.nbytes / copy.us, 2e6 * side**3 / product.us, cache_bytes(device))


def cache_bytes(device: torch.device) -> int:
    """Return the size of the level-2 cache; on a CPU, for dry runs, one that all inputs fit in."""
    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 1 << 62


def device_for(task: Task) -> torch.device:
    """Return the device that a task runs on; a dry run takes one core, since other processes run beside it."""
    if not task.dry:
        return torch.device("cuda", torch.cuda.current_device())
    torch.set_num_threads(1)
    return torch.device("cpu")


def timer_of(device: torch.device) -> Timer:
    """Return what times candidates on a device."""
    return CudaTimer(device, clock=sm_clock(device)) if device.type == "cuda" else HostTimer(samples=1)


def device_facts(device: torch.device) -> dict[str, Any]:
    """Return name, size and versions of what figures belong to."""
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if device.type != "cuda":
        return {"device": str(device), **versions}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "cudnn": torch.backends.cudnn.version(),
        "sm_mhz_now": sm_clock(device)(),
        **versions,
    }


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
