"""Asks the NVIDIA driver about memory that torch does not see, through NVML where the extra `nvml` is installed."""

import contextlib
import functools
import logging
import os
from pathlib import Path
from typing import Any

logger = logging.getLogger("milkweed.nvml")

MODULE_VERSION = Path("/sys/module/nvidia/version")


def process_bytes(uuid: str) -> int | None:
    """Bytes that this process holds on a GPU: torch's, the CUDA context, libraries and their pools. `uuid`: the GPU's,
    as torch spells it. Returns None where it is not known: no NVML, an old driver, or a container, outside which the
    process has another id."""
    nvml = library()
    if nvml is None:
        return None
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return None
    held = [process.usedGpuMemory for process in running if process.pid == os.getpid()]
    return sum(held) if held and None not in held else None


def driver_version() -> str | None:
    """The version of the NVIDIA driver, such as `580.65.06`, from NVML or the kernel module; None without a driver."""
    nvml = library()
    if nvml is not None:
        with contextlib.suppress(nvml.NVMLError):
            return str(nvml.nvmlSystemGetDriverVersion())
    try:
        return MODULE_VERSION.read_text().strip()
    except OSError:
        return None


@functools.cache
def library() -> Any:
    """pynvml after nvmlInit; None where it is not installed or has no driver, which is logged once."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.info("NVML does not answer: %s", error)
        return None
    return pynvml
