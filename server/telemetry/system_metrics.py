"""Reads memory and CPU time from the operating system, the container and the GPUs, at each scrape."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from prometheus_client.core import GaugeMetricFamily, Metric

from ...inference.device import control_groups, read_text
from .families import counter, gauge
from .nvml import process_bytes

_TASKS = Path("/proc/self/task")

_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 has no word for none, and says the largest number of whole pages


def collect_process_memory() -> Iterator[Metric]:
    """Collect the resident, proportional and unique bytes of this process; the last two where the system tells."""
    process = psutil.Process()
    try:
        full = process.memory_full_info()
        kinds = {kind: getattr(full, kind, None) for kind in ("rss", "pss", "uss")}
    except psutil.AccessDenied:
        kinds = {"rss": process.memory_info().rss}
    known = {kind: float(value) for kind, value in kinds.items() if value is not None}
    yield gauge("process_memory_bytes", "Memory of the server process by kind: rss, pss, uss.", kind=known)


def collect_gpu_memory() -> Iterator[Metric]:
    """Collect who holds the memory of each GPU that torch uses; nothing where CUDA was never started."""
    torch = sys.modules.get("torch")  # it is never imported to be asked
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    family = GaugeMetricFamily(
        "milkweed_gpu_memory_bytes",
        "GPU memory by who holds it; the kinds of a device add up to all of it.",
        labels=["device", "kind"],
    )
    peaks: dict[str, float] = {}
    for index in range(torch.cuda.device_count()):
        reserved = torch.cuda.memory_reserved(index)
        if not reserved:
            continue  # asking about an unused GPU would start CUDA there, which takes half a gigabyte
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
        peaks[f"cuda:{index}"] = float(torch.cuda.max_memory_allocated(index))
    yield family
    yield gauge("gpu_memory_peak_allocated_bytes", "Most that torch's tensors ever held.", device=peaks)


def gpu_memory_kinds(*, free: int, total: int, allocated: int, reserved: int, process: int | None) -> dict[str, int]:
    """Divide a GPU's memory, bytes, among its holders; together they are `total`.

    `unaccounted` is what this process holds beyond torch: the CUDA context, kernels, libraries, DALI's pools. Where the
    driver does not tell what the process holds, that and the memory of `others` are `unattributed`.

    Args:
        allocated, reserved: torch's, for tensors and in all.
        process: what the driver counts for this process; None where it does not tell.
    """
    beyond = max(0, total - free - reserved)
    kinds = {"torch_allocated": allocated, "torch_cached": reserved - allocated}
    if process is None:
        kinds["unattributed"] = beyond
    else:
        # The figures are read one after the other: memory freed in between must not make one negative.
        kinds["unaccounted"] = min(beyond, max(0, process - reserved))
        kinds["others"] = beyond - kinds["unaccounted"]
    return kinds | {"free": free}


@dataclass(frozen=True)
class ContainerMemory:
    """The memory of the container as the kernel counts and limits it (cgroup v1 or v2), bytes.

    Args:
        working_set: memory of all processes without file pages that were not read for a while, as the kubelet counts.
        limit: beyond it the kernel ends a process.
    """

    working_set: int
    limit: int


def container_memory(root: Path = Path("/")) -> ContainerMemory | None:
    """Read the memory of the process's control group with the least limit; None where none has one or can be read."""
    limited = []
    for group in control_groups(root):
        for limit, used, inactive in _MEMORY_FILES:
            with contextlib.suppress(ValueError, IndexError):
                most, held = (int(read_text(group / name)) for name in (limit, used))
                if most < _NO_LIMIT_BYTES:
                    counts = read_text(group / "memory.stat").split()
                    idle = int(counts[counts.index(inactive) + 1]) if inactive in counts else 0
                    limited.append(ContainerMemory(max(0, held - idle), most))
    return min(limited, key=lambda memory: memory.limit, default=None)


def collect_container_memory(root: Path = Path("/")) -> Iterator[Metric]:
    """Collect working set and limit, where there is a limit."""
    memory = container_memory(root)
    if memory is None:
        return
    text = "Memory of the container that cannot be taken back, of all its processes."
    yield GaugeMetricFamily("milkweed_container_memory_working_set_bytes", text, value=memory.working_set)
    text = "Limit of the container's memory; there where it has one."
    yield GaugeMetricFamily("milkweed_container_memory_limit_bytes", text, value=memory.limit)


class StageCpu:
    """Counts the CPU seconds of the stages that run in the engine, its lanes and the decoders.

    Threads of torch's own pool, of a runtime's and those that help our kernels are not Python's, so a stage does not
    time them. They only ever work for the forward, and their time, read from the kernel at each scrape, is added to it.
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
        """The counter, for the registry."""
        # The time of a pool thread is gone when the thread ends, but a counter must not go down.
        self._native_most = max(self._native_most, native_thread_seconds() - self._native_at_start)
        seconds = {**self._seconds, "forward": self._seconds["forward"] + self._native_most}
        yield counter("stage_cpu_seconds", "CPU time by stage, over all threads.", stage=seconds)


def native_thread_seconds() -> float:
    """CPU seconds of living threads that Python did not start (torch's OpenMP pool); Linux only, else 0."""
    ours = {thread.native_id for thread in threading.enumerate()}
    total_ns = 0
    try:
        for task in _TASKS.iterdir():
            if int(task.name) not in ours:
                total_ns += int((task / "schedstat").read_text().split()[0])
    except (OSError, ValueError):  # not Linux, or a thread ended between the two reads
        pass
    return total_ns / 1e9
