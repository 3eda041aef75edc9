"""What the driver says of GPU memory beyond torch's view, through NVML where the extra `nvml` is installed."""

import contextlib
import functools
import logging
import os
from pathlib import Path
from typing import Any

logger = logging.getLogger("milkweed.nvml")

_MODULE_VERSION = Path("/sys/module/nvidia/version")


def process_bytes(uuid: str) -> int | None:
    """Bytes that this process holds on a GPU: torch's, the CUDA context, libraries and their pools.

    Args:
        uuid: of the GPU, as torch spells it.

    Returns:
        None where nobody can tell: no NVML, an old driver, a process whose number is another one outside its container.
    """
    library = _library()
    if library is None:
        return None
    try:
        handle = library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
        running = library.nvmlDeviceGetComputeRunningProcesses(handle)
    except library.NVMLError:
        return None
    held = [process.usedGpuMemory for process in running if process.pid == os.getpid()]
    return sum(held) if held and None not in held else None


def driver_version() -> str | None:
    """Of the kernel's NVIDIA driver, `580.65.06`: from NVML, else from the module itself; None where there is none."""
    library = _library()
    if library is not None:
        with contextlib.suppress(library.NVMLError):
            return str(library.nvmlSystemGetDriverVersion())
    try:
        return _MODULE_VERSION.read_text().strip()
    except OSError:
        return None


@functools.cache
def _library() -> Any:
    """pynvml, ready; None where it is not installed or has no driver, said once."""
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
