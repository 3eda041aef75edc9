"""The machine without its GPUs: system, cores, instructions, memory, files."""

from collections.abc import Iterator

from ...server.config.settings import Settings
from ...server.http.transport.sockets import files_for
from .finding import Finding
from .system_info import SystemInfo

RESIDENT_BYTES = 920_000_000
"""Of a server with DeiT-Tiny under load on two cores: bench/results/server_deit.json."""

BYTES_A_PIXEL = 3

SHM_BYTES = 1 << 30
"""Decoding processes of a training put their batches there."""


def machine_findings(facts: SystemInfo, settings: Settings) -> Iterator[Finding]:
    """A row for each."""
    yield _found("system", f"{facts.system}, Python {facts.python}")
    yield _cores(facts)
    yield _numbers(facts, settings)
    yield _memory(facts, settings)
    yield _shm(facts)
    yield _files(facts, settings)


def needed_bytes(settings: Settings) -> int:
    """Memory that the service may take: a small model's, what requests may hold, what a batch may decode to."""
    return RESIDENT_BYTES + settings.max_held_bytes + BYTES_A_PIXEL * settings.max_batch_pixels


def _cores(facts: SystemInfo) -> Finding:
    text = f"{facts.cores} usable of {facts.machine_cores}, {facts.cpu}"
    if facts.cores >= facts.machine_cores:
        return _found("CPU cores", text)
    return _found("CPU cores", f"{text}; affinity or the container's quota keeps the others away")


def _numbers(facts: SystemInfo, settings: Settings) -> Finding:
    """Which instructions there are, and whether the forward's numbers make use of them."""
    name = "CPU numbers"
    matrix = " and AMX" if "amx_bf16" in facts.flags else ""
    if not facts.bfloat16:
        return _found(name, f"{facts.cpu_capability}, no bfloat16 instructions: float32 is quickest here")
    text = f"{facts.cpu_capability}, computes in bfloat16{matrix}"
    if facts.gpus or settings.dtype != "float32":
        return _found(name, text)
    return Finding(
        "machine",
        name,
        "ok",
        f"{text}; dtype = float32, the default, makes no use of that",
        "milkweed serve --dtype auto",
    )


def _memory(facts: SystemInfo, settings: Settings) -> Finding:
    name, needed = "memory", needed_bytes(settings)
    limit = min(facts.memory, facts.memory_limit or facts.memory)
    limited = facts.memory_limit is not None and facts.memory_limit < facts.memory
    text = f"{_gb(limit)} limit of this container, the machine has {_gb(facts.memory)}" if limited else _gb(limit)
    if limit >= needed:
        return _found(name, text)
    return Finding(
        "machine",
        name,
        "warning",
        f"{text}; a small model with the most that requests may hold takes {_gb(needed)}",
        "give the container 2 GB or more, or lower MILKWEED_MAX_HELD_BYTES and MILKWEED_MAX_BATCH_PIXELS",
    )


def _shm(facts: SystemInfo) -> Finding:
    name = "/dev/shm"
    if facts.shm_free is not None and facts.shm_free >= SHM_BYTES:
        return _found(name, f"{_gb(facts.shm_free)} free")
    text = "not there" if facts.shm_free is None else f"{_gb(facts.shm_free)} free"
    return Finding(
        "machine",
        name,
        "warning",
        f"{text}: serving needs none, `milkweed train --workers` passes its batches through it",
        "docker run --shm-size=1g ...",
    )


def _files(facts: SystemInfo, settings: Settings) -> Finding:
    needed = files_for(settings.max_connections)
    if facts.files >= needed:
        return _found("open files", f"enough for max_connections = {settings.max_connections}")
    return Finding(
        "machine",
        "open files",
        "warning",
        f"the limit is {facts.files}, max_connections = {settings.max_connections} needs {needed}",
        f"ulimit -Hn {needed} as root, or --max-connections {max(1, facts.files - files_for(0))}",
    )


def _found(name: str, text: str) -> Finding:
    return Finding("machine", name, "ok", text)


def _gb(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count < 10**10 else f"{count / 1e9:,.0f} GB"
