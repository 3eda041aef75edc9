"""Checks the machine apart from its GPUs: system, cores, instructions, memory, files."""

import os
import platform
import resource
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil

from ...inference.device import CPU, computes_in_bfloat16, cpu_flags, processor_name, usable_cores
from ...models.programs.session import instruction_set, kernels_refusal
from ...server.config.settings import Settings
from ...server.http.transport.sockets import RELAYED_FILES, files_for
from ...server.telemetry.system_metrics import container_memory
from .finding import Finding, row

_row = partial(row, "machine")

RESIDENT_BYTES = 920_000_000
"""The memory of a server with DeiT-Tiny under load on two cores: bench/results/server_deit.json."""

BYTES_A_PIXEL = 3

SHM = Path("/dev/shm")
SHM_BYTES = 1 << 30
"""The decoding processes of a training run put their batches into /dev/shm; this much is enough."""

VECTORS = {"avx512f": "AVX512", "avx2": "AVX2"}
"""The widest vectors of a CPU, by its flag."""


def machine_findings(settings: Settings, *, with_gpu: bool) -> Iterator[Finding]:
    """Make a row for each check."""
    yield _row("system", f"{platform.platform()}, Python {platform.python_version()}")
    usable, present = usable_cores(), os.cpu_count() or 1
    others = "; affinity or the container's quota keeps the others away" if usable < present else ""
    yield _row("CPU cores", f"{usable} usable of {present}, {processor_name()}{others}")
    yield _numbers(settings, with_gpu)
    refusal = kernels_refusal()
    text = "" if refusal else f"{instruction_set()}: --backend milkweed or auto, and what the search makes for them"
    yield _row("CPU kernels", text, refusal, status="broken" if settings.backend == "milkweed" else "missing")
    yield _memory(needed_bytes(settings))
    yield _shm()
    yield _files(settings)


def needed_bytes(settings: Settings) -> int:
    """Sum the memory that the service may take: a small model's, the requests' bodies, a decoded batch."""
    return RESIDENT_BYTES + settings.max_held_bytes + BYTES_A_PIXEL * settings.max_batch_pixels


def _numbers(settings: Settings, with_gpu: bool) -> Finding:
    """Tell which instructions the CPU has, and whether the number type of the settings makes use of them."""
    flags = cpu_flags()
    vectors = next((name for flag, name in VECTORS.items() if flag in flags), "no AVX2")
    if not computes_in_bfloat16(CPU):
        return _row("CPU numbers", f"{vectors}, no bfloat16 instructions: float32 is quickest here")
    text = f"{vectors}, computes in bfloat16{' and AMX' if 'amx_bf16' in flags else ''}"
    unused = not with_gpu and settings.dtype == "float32"
    fault = f"{text}; dtype = float32 makes no use of that" if unused else None
    return _row("CPU numbers", text, fault, "milkweed serve --dtype auto", "ok")


def _memory(needed: int) -> Finding:
    total, container = psutil.virtual_memory().total, container_memory()
    limit = total if container is None else min(total, container.limit)
    text = _gb(limit) + (f" limit of this container, the machine has {_gb(total)}" if limit < total else "")
    more = f"{text}; a small model with the most that requests may hold takes {_gb(needed)}"
    fix = "give the container 2 GB or more, or lower MILKWEED_MAX_HELD_BYTES and MILKWEED_MAX_BATCH_PIXELS"
    return _row("memory", text, more if limit < needed else None, fix)


def _shm() -> Finding:
    free = shutil.disk_usage(SHM).free if SHM.is_dir() else None
    text = "not there" if free is None else f"{_gb(free)} free"
    more = f"{text}: serving needs none, `milkweed train --workers` passes its batches through it"
    return _row("/dev/shm", text, more if (free or 0) < SHM_BYTES else None, "docker run --shm-size=1g ...")


def _files(settings: Settings) -> Finding:
    per_connection = RELAYED_FILES if settings.grpc_port else 1
    needed = files_for(settings.max_connections, per_connection)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    few = limit != resource.RLIM_INFINITY and limit < needed
    fault = f"the limit is {limit}, max_connections = {settings.max_connections} needs {needed}" if few else None
    room = max(1, (limit - files_for(0, per_connection)) // per_connection)
    fix = f"ulimit -Hn {needed} as root, or --max-connections {room}"
    return _row("open files", f"enough for max_connections = {settings.max_connections}", fault, fix)


def _gb(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count < 10**10 else f"{count / 1e9:,.0f} GB"
