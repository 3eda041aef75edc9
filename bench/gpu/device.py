"""The device: what it is, whether its kernel library is there, what it reaches, and how calls are timed on it."""

import ctypes
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from ... import kernels
from ...kernels.native import build
from ...kernels.native.library import native_status
from ...kernels.native.stamp import source_hash
from ...kernels.tuning.timing import capture, warm_up
from ..turns import in_turns
from .journal import Absent, Record, one_line
from .plan import Task

REPEATS = 20
"""Calls of one graph: the time of a replay is divided by them, so that launching the graph costs little."""

SAMPLES, SAMPLE_SECONDS = (5, 50), 2.0
"""Replays of each candidate: at least, at most, and the seconds after which no further round of them begins."""

LARGE, SMALL, TINY = (8192, 1 << 30), (768, 1 << 24), (256, 1 << 20)
"""Side of the matrices and numbers of the copy: for a GPU, for a CPU (done before another process has its turn), for a
dry run."""

SM_CLOCK = 1
"""NVML's number of the clock of the multiprocessors."""

SUFFIXES = {".py", ".cu", ".cuh", ".h"}

Call = Callable[[], object]


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


def library(task: Task, unit: str) -> Iterator[Record]:
    """Yield the device's facts, and see to it that the kernel library is there."""
    if not task.dry_run and not torch.cuda.is_available():
        raise Absent("no CUDA device")
    device, sources = device_for(task), source_hash(Path(kernels.__file__).resolve().parent, SUFFIXES)
    yield {"kind": "device", **device_facts(device), "sources": sources[:16]}
    if task.dry_run:
        return
    status = native_status(device)
    if not status.loaded:
        print(f"{status}: building")
        if build.main(["--arch", "native"]) == 0:
            status = native_status(device)
    if not status.loaded:
        raise Absent(str(status))


def ceilings(task: Task, unit: str) -> Iterator[Record]:
    """Measure the ceilings."""
    measured = measure_ceilings(device_for(task), getattr(torch, task.dtype), TINY if task.dry_run else LARGE)
    yield {"what": "ceilings", **asdict(measured)}


def measure_ceilings(device: torch.device, dtype: torch.dtype, sizes: tuple[int, int], rounds: int = 1) -> Ceilings:
    """Measure both on random data (zeros run faster than real numbers)."""
    side, numbers = sizes
    source = torch.randn(min(numbers, 1 << 24), device=device).repeat(max(1, numbers >> 24))
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    timings = time_calls(device, {"copy": lambda: target.copy_(source), "product": lambda: a @ b}, rounds=rounds)
    if reasons := [timing["note"] for timing in timings.values() if not timing["us"]]:
        raise RuntimeError(f"the ceilings could not be measured: {'; '.join(reasons)}")
    return Ceilings(2e6 * source.nbytes / timings["copy"]["us"], 2e6 * side**3 / timings["product"]["us"])


def device_for(task: Task) -> torch.device:
    """Return the device that a task runs on; a dry run takes one core, since other processes run beside it."""
    if not task.dry_run:
        return torch.device("cuda", torch.cuda.current_device())
    torch.set_num_threads(1)
    return torch.device("cpu")


def device_facts(device: torch.device) -> Record:
    """Return name, size and versions of what figures belong to."""
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if device.type != "cuda":
        return {"device": str(device), **versions}
    facts = torch.cuda.get_device_properties(device)
    sizes = {"multiprocessors": facts.multi_processor_count, "memory_bytes": facts.total_memory}
    return {"device": facts.name, "capability": f"{facts.major}.{facts.minor}", **sizes, **versions}


def memory_used(device: torch.device) -> int:
    """Return the bytes in use: of the GPU by everybody, or in a dry run of this process."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def time_calls(
    device: torch.device, calls: Mapping[str, Call], eager: Collection[str] = (), rounds: int = 1
) -> dict[str, Record]:
    """Time calls in turns, so that whatever else the machine does hits all of them alike.

    On a GPU they are graphs of many calls between events; a call that cannot run has a reason instead. On a CPU, where
    calls that failed are not expected, the fastest of the rounds counts, which others disturb least.

    Args:
        eager: calls that are launched one by one, as a program without CUDA graphs does.
        rounds: on a CPU.

    Returns:
        Microseconds of one call: `us`, the median over samples, and `iqr_us`, the distance between the quartiles;
        `sm_mhz` and `sm_mhz_least`, the multiprocessors' clock meanwhile, None where nothing tells. Where a call cannot
        run `us` is None, and `note` says why.
    """
    if not calls:
        return {}
    if device.type != "cuda":
        spent = in_turns(calls, rounds, warm_up=0)
        us = {name: [1e3 * wall for wall, _ in of_call] for name, of_call in spent.items()}
        return {name: _timing(samples, []) | {"us": min(samples)} for name, samples in us.items()}
    results: dict[str, Record] = {}
    replays: dict[str, Call] = {}
    with torch.cuda.device(device):
        for name, call in calls.items():
            try:
                warm_up(call)
                replays[name] = partial(_repeat, call) if name in eager else capture(call, REPEATS).replay
            except Exception as error:  # a candidate that cannot run is a row that says so; the others go on
                results[name] = {"us": None, "note": one_line(error)}
                torch.cuda.synchronize(device)
        return results | _replay(device, replays)


def _replay(device: torch.device, replays: Mapping[str, Call]) -> dict[str, Record]:
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in replays}
    began, clocks, read_clock = time.perf_counter(), list[float](), sm_clock(device)
    for turn in range(1, SAMPLES[1] + 1):
        for name, replay in replays.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            end.record()
            events[name].append((start, end))
        if (mhz := read_clock()) is not None:  # the replays of this round are still running
            clocks.append(mhz)
        torch.cuda.synchronize(device)
        if turn >= SAMPLES[0] and time.perf_counter() - began > SAMPLE_SECONDS:
            break
    us = {name: [1e3 * start.elapsed_time(end) / REPEATS for start, end in pairs] for name, pairs in events.items()}
    return {name: _timing(samples, clocks) for name, samples in us.items()}


def _repeat(call: Call) -> None:
    for _ in range(REPEATS):
        call()


def _timing(us: list[float], clocks: list[float]) -> Record:
    quarters = quantiles(us, n=4) if len(us) > 1 else us * 3
    middle, slowest = (median(clocks), min(clocks)) if clocks else (None, None)
    return {"us": median(us), "iqr_us": quarters[2] - quarters[0], "sm_mhz": middle, "sm_mhz_least": slowest}


def sm_clock(device: torch.device, nvml: Any = None) -> Callable[[], float | None]:
    """Return what reads the clock of the device's multiprocessors now, MHz, by NVML, the library under nvidia-smi.

    It gives None where NVML does not tell. Nothing is set.
    """
    handle, mhz = ctypes.c_void_p(), ctypes.c_uint()
    try:
        nvml = nvml or ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return lambda: None
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    unknown = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle))

    def read() -> float | None:
        failed = unknown or nvml.nvmlDeviceGetClockInfo(handle, SM_CLOCK, ctypes.byref(mhz))
        return None if failed else float(mhz.value)

    return read
