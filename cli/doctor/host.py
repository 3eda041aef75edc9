"""Checks the machine apart from its GPUs: system, cores, instructions, memory, files."""

from collections.abc import Iterator
from functools import partial

from ...server.config.settings import Settings
from ...server.http.transport.sockets import RELAYED_FILES, files_for
from .finding import Finding
from .system_info import SystemInfo

_row = partial(Finding, "machine")

RESIDENT_BYTES = 920_000_000
"""The memory of a server with DeiT-Tiny under load on two cores: bench/results/server_deit.json."""

BYTES_A_PIXEL = 3

SHM_BYTES = 1 << 30
"""The decoding processes of a training run put their batches into /dev/shm; this much is enough."""


def machine_findings(facts: SystemInfo, settings: Settings) -> Iterator[Finding]:
    """Make a row for each check."""
    yield _row("system", "ok", f"{facts.system}, Python {facts.python}")
    yield _cores(facts)
    yield _numbers(facts, settings)
    yield _kernels(facts, settings)
    yield _memory(facts, settings)
    yield _shm(facts)
    yield _files(facts, settings)


def needed_bytes(settings: Settings) -> int:
    """Sum the memory that the service may take: a small model's, the requests' bodies, a decoded batch."""
    return RESIDENT_BYTES + settings.max_held_bytes + BYTES_A_PIXEL * settings.max_batch_pixels


def _cores(facts: SystemInfo) -> Finding:
    text = f"{facts.cores} usable of {facts.machine_cores}, {facts.cpu}"
    if facts.cores >= facts.machine_cores:
        return _row("CPU cores", "ok", text)
    return _row("CPU cores", "ok", f"{text}; affinity or the container's quota keeps the others away")


def _numbers(facts: SystemInfo, settings: Settings) -> Finding:
    """Tell which instructions the CPU has, and whether the number type of the settings makes use of them."""
    name = "CPU numbers"
    matrix = " and AMX" if "amx_bf16" in facts.flags else ""
    if not facts.bfloat16:
        return _row(name, "ok", f"{facts.cpu_capability}, no bfloat16 instructions: float32 is quickest here")
    text = f"{facts.cpu_capability}, computes in bfloat16{matrix}"
    if facts.gpus or settings.dtype != "float32":
        return _row(name, "ok", text)
    text += f"; dtype = {settings.dtype} makes no use of that"
    return _row(name, "ok", text, "milkweed serve --dtype auto")


def _kernels(facts: SystemInfo, settings: Settings) -> Finding:
    """Tell whether our CPU kernels can be used, and by which instruction set."""
    name, error = "CPU kernels", facts.cpu_kernels_error
    if error is None:
        return _row(name, "ok", f"{facts.cpu_kernels}: --backend milkweed or auto, and what the search makes for them")
    what, _, fix = error.partition(": make ")
    return _row(name, "broken" if settings.backend == "milkweed" else "missing", what, f"make {fix}" if fix else "")


def _memory(facts: SystemInfo, settings: Settings) -> Finding:
    name, needed = "memory", needed_bytes(settings)
    limit = min(facts.memory, facts.memory_limit or facts.memory)
    limited = facts.memory_limit is not None and facts.memory_limit < facts.memory
    text = f"{_gb(limit)} limit of this container, the machine has {_gb(facts.memory)}" if limited else _gb(limit)
    if limit >= needed:
        return _row(name, "ok", text)
    text += f"; a small model with the most that requests may hold takes {_gb(needed)}"
    fix = "give the container 2 GB or more, or lower MILKWEED_MAX_HELD_BYTES and MILKWEED_MAX_BATCH_PIXELS"
    return _row(name, "warning", text, fix)


def _shm(facts: SystemInfo) -> Finding:
    name = "/dev/shm"
    if facts.shm_free is not None and facts.shm_free >= SHM_BYTES:
        return _row(name, "ok", f"{_gb(facts.shm_free)} free")
    text = "not there" if facts.shm_free is None else f"{_gb(facts.shm_free)} free"
    text += ": serving needs none, `milkweed train --workers` passes its batches through it"
    return _row(name, "warning", text, "docker run --shm-size=1g ...")


def _files(facts: SystemInfo, settings: Settings) -> Finding:
    per_connection = RELAYED_FILES if settings.grpc_port else 1
    needed = files_for(settings.max_connections, per_connection)
    if facts.files >= needed:
        return _row("open files", "ok", f"enough for max_connections = {settings.max_connections}")
    text = f"the limit is {facts.files}, max_connections = {settings.max_connections} needs {needed}"
    room = max(1, (facts.files - files_for(0, per_connection)) // per_connection)
    return _row("open files", "warning", text, f"ulimit -Hn {needed} as root, or --max-connections {room}")


def _gb(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count < 10**10 else f"{count / 1e9:,.0f} GB"
