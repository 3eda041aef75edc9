"""Memory as the operating system and the device see it, read at each scrape."""

import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

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
    """What torch's allocator holds and what the device has in use; nothing where CUDA was never started."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    names = ("allocated", "reserved", "peak_allocated", "device_used", "device_total")
    families = {
        name: GaugeMetricFamily(f"milkweed_gpu_memory_{name}_bytes", f"GPU memory, {name}.", labels=["device"])
        for name in names
    }
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        values = (
            torch.cuda.memory_allocated(index),
            torch.cuda.memory_reserved(index),
            torch.cuda.max_memory_allocated(index),
            total - free,
            total,
        )
        for name, value in zip(names, values, strict=True):
            families[name].add_metric([f"cuda:{index}"], float(value))
    yield from families.values()


class StageCpu:
    """CPU seconds of the stages that run in the engine, its lanes and the decoders.

    Threads of torch's own pool are not Python's, so a stage cannot time them; they only ever work for the
    forward, and their time, read from the kernel at each scrape, is added to it.
    """

    def __init__(self, stages: tuple[str, ...]) -> None:
        self._seconds = dict.fromkeys(stages, 0.0)
        self._native_at_start = native_thread_seconds()
        self._native_most = 0.0

    def add(self, stage: str, seconds: float) -> None:
        """Count CPU time of a stage; only the engine thread calls this."""
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
