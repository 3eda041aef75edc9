"""What decodes here: versions, the GPU's JPEG engines, the memory that is in use."""

import ctypes
import importlib.util
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-nvimgcodec-cu13", "nvidia-nvjpeg", "torchvision")
_HARDWARE = 3
"""NVJPEG_BACKEND_HARDWARE of nvjpeg.h."""


def image_facts(device: torch.device) -> dict[str, Any]:
    """Versions of what decodes, and the engines."""
    facts: dict[str, Any] = {}
    for package in _PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    import nvidia.dali

    return {**facts, "nvidia.dali": nvidia.dali.__version__, "jpeg_engines": jpeg_engines()}


def jpeg_engines() -> str:
    """Hardware decoders of this GPU, engines times cores each; a text that says why where they cannot be counted."""
    reason = "no libnvjpeg in the nvidia packages"
    for path in _libraries():
        try:
            return _ask(ctypes.CDLL(str(path)))
        except (OSError, AttributeError, RuntimeError) as error:
            reason = f"{path.name}: {error}"
    return f"not counted: {reason}"


def memory_used(device: torch.device) -> int:
    """Bytes: of the GPU by everybody; in a dry run of this process."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    import psutil

    return int(psutil.Process().memory_info().rss)


def _libraries() -> Iterator[Path]:
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or []) if found else []:
        yield from sorted(Path(folder).rglob("libnvjpeg.so*"))


def _ask(library: Any) -> str:
    handle, engines, cores = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
    _check(library.nvjpegCreateEx(_HARDWARE, None, None, 0, ctypes.byref(handle)), "nvjpegCreateEx")
    try:
        status = library.nvjpegGetHardwareDecoderInfo(handle, ctypes.byref(engines), ctypes.byref(cores))
        _check(status, "nvjpegGetHardwareDecoderInfo")
    finally:
        library.nvjpegDestroy(handle)
    return f"{engines.value} x {cores.value}"


def _check(status: int, function: str) -> None:
    if status:
        raise RuntimeError(f"{function} answered {status}")
