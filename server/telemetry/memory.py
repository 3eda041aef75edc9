"""Memory as the operating system and the device see it, read at each scrape; and giving it back."""

import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from .nvml import process_bytes

_TASKS = Path("/proc/self/task")


def collect_process_memory() -> Iterator[Metric]:
    """Resident, proportional and unique bytes of this process; the last two where the system tells."""
    family = GaugeMetricFamily(
        "milkweed_process_memory_bytes",
        "Memory of the server process by kind: rss, pss, uss.",
        labels=["kind"],
    )
    process = psutil.Process()
    try:
        full = process.memory_full_info()
        kinds = {kind: getattr(full, kind, None) for kind in ("rss", "pss", "uss")}
    except psutil.AccessDenied:
        kinds = {"rss": process.memory_info().rss}
    for kind, value in kinds.items():
        if value is not None:
            family.add_metric([kind], float(value))
    yield family


def collect_gpu_memory() -> Iterator[Metric]:
    """Who holds the memory of each GPU that torch is on; nothing where CUDA was never started."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    family = GaugeMetricFamily(
        "milkweed_gpu_memory_bytes",
        "GPU memory by who holds it; the kinds of a device add up to all of it.",
        labels=["device", "kind"],
    )
    peak = GaugeMetricFamily(
        "milkweed_gpu_memory_peak_allocated_bytes", "Most that torch's tensors ever held.", labels=["device"]
    )
    for index in range(torch.cuda.device_count()):
        reserved = torch.cuda.memory_reserved(index)
        if not reserved:
            continue  # to ask about a GPU that nobody uses would start CUDA there, for half a gigabyte
        free, total = torch.cuda.mem_get_info(index)
        kinds = gpu_memory_kinds(
            free=free,
            total=total,
            allocated=torch.cuda.memory_allocated(index),
            reserved=reserved,
            process=process_bytes(str(torch.cuda.get_device_properties(index).uuid)),
        )
        for kind, value in kinds.items():
            family.add_metric([f"cuda:{index}", kind], float(value))
        peak.add_metric([f"cuda:{index}"], float(torch.cuda.max_memory_allocated(index)))
    yield from (family, peak)


def gpu_memory_kinds(*, free: int, total: int, allocated: int, reserved: int, process: int | None) -> dict[str, int]:
    """A GPU's memory, bytes, divided among who holds it; together `total`.

    `unaccounted` is this process beyond torch: the CUDA context, kernels, libraries, DALI's pools. Where nobody says
    what the process holds, that and what `others` hold are `unattributed`.

    Args:
        allocated, reserved: by torch, for tensors and altogether.
        process: that the driver counts for this process; None where it does not say.
    """
    beyond = max(0, total - free - reserved)
    kinds = {"torch_allocated": allocated, "torch_cached": reserved - allocated}
    if process is None:
        kinds["unattributed"] = beyond
    else:
        # The figures are read one after the other: what was freed in between must not make one negative.
        kinds["unaccounted"] = min(beyond, max(0, process - reserved))
        kinds["others"] = beyond - kinds["unaccounted"]
    return kinds | {"free": free}


def trim_heap() -> None:
    """Give memory that was freed back to the system, where the C library would keep it for itself."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return  # another C library: it keeps what it likes


class StageCpu:
    """CPU seconds of the stages that run in the engine, its lanes and the decoders.

    Threads of torch's own pool are not Python's, so a stage cannot time them; they only ever work for the
    forward, and their time, read from the kernel at each scrape, is added to it.
    """

    def __init__(self, stages: tuple[str, ...]) -> None:
        self._seconds = dict.fromkeys(stages, 0.0)
        self._lock = threading.Lock()
        self._native_at_start = native_thread_seconds()
        self._native_most = 0.0

    def add(self, stage: str, seconds: float) -> None:
        """Count CPU time of a stage; called on the engines' threads."""
        with self._lock:
            self._seconds[stage] += seconds

    def collect(self) -> Iterator[Metric]:
        """The counter family, for the registry."""
        # A pool thread that ended takes its time with it; a counter must not go down.
        self._native_most = max(self._native_most, native_thread_seconds() - self._native_at_start)
        family = CounterMetricFamily(
            "milkweed_stage_cpu_seconds", "CPU time by stage, over all threads.", labels=["stage"]
        )
        for stage, seconds in self._seconds.items():
            family.add_metric([stage], seconds + (self._native_most if stage == "forward" else 0.0))
        yield family


def native_thread_seconds() -> float:
    """CPU seconds of living threads that Python did not start (torch's OpenMP pool); Linux only, else 0."""
    ours = {thread.native_id for thread in threading.enumerate()}
    total_ns = 0
    try:
        for task in _TASKS.iterdir():
            if int(task.name) not in ours:
                total_ns += int((task / "schedstat").read_text().split()[0])
    except (OSError, ValueError):  # not Linux, or a thread ended between the two reads
        return total_ns / 1e9
    return total_ns / 1e9
