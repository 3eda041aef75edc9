"""Loads the compiled kernels once, when they are asked for; if they cannot be loaded, one line says why.

The operators themselves (`torch_ops`) exist without the library: their CPU and fake implementations are Python.
"""

import os
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from ..installation import install_command
from . import torch_ops  # noqa: F401, the operators that a library adds its CUDA implementations to
from .stamp import LIBRARY, LibraryStamp, file_sha256, read_stamp, source_hash

VARIABLE = "MILKWEED_KERNELS"
"""The environment variable that names another library file than the package's own."""


@dataclass(frozen=True)
class NativeStatus:
    """Whether the CUDA kernels can be used on a device, and why or why not.

    Args:
        loaded: whether they can be used.
        reason: one line for people, in both cases.
        arch: the code that the device runs: machine code, `90a`, or PTX that its driver translates, `compute_90`.
    """

    loaded: bool
    reason: str
    arch: str | None = None

    def __str__(self) -> str:
        return self.reason


class LibraryError(RuntimeError):
    """Says in one line why a library is not loaded."""


# A library cannot be unloaded, so that it was loaded is state of the process.
_lock = threading.Lock()
_loaded: dict[Path, LibraryStamp] = {}


def native_status(device: torch.device | int | None = None) -> NativeStatus:
    """Load the library if that has not happened yet, and tell whether its kernels run on `device`.

    It never raises: if a library is missing, stale or of another CUDA, that is the reason, and PyTorch's own operations
    are used instead. Several threads may call it, but no code that torch.compile compiles.

    Args:
        device: a CUDA device, its index, or None for the current one.
    """
    if torch.version.cuda is None:
        return NativeStatus(False, "this PyTorch is built without CUDA")
    if isinstance(device, torch.device) and device.type != "cuda":
        return NativeStatus(False, f"device is {device.type}: the kernels are CUDA's")
    if not torch.cuda.is_available():
        return NativeStatus(False, "no CUDA device")
    path = library_path()
    try:
        stamp = load_library(path)
    except LibraryError as error:
        return NativeStatus(False, str(error))
    capability = torch.cuda.get_device_capability(device)
    arch = stamp.arch_for(capability)
    if arch is None:
        built = ", ".join(stamp.archs)
        number = "{}.{}".format(*capability)
        return NativeStatus(False, f"no code for compute capability {number}: {path.name} was built for {built}")
    return NativeStatus(True, f"{path.name} ({arch}, CUDA {stamp.nvcc})", arch)


def library_path() -> Path:
    """Return where the library is expected."""
    return Path(os.environ.get(VARIABLE) or LIBRARY).resolve()


def load_library(path: Path) -> LibraryStamp:
    """Check a library against these sources and this PyTorch and load it, which needs no device; later calls are cheap.

    Raises:
        LibraryError: it is missing or does not fit.
    """
    with _lock:
        if path not in _loaded:
            stamp = _checked_stamp(path)
            if _loaded:
                raise LibraryError(f"another library is loaded already: {next(iter(_loaded))}")
            try:
                torch.ops.load_library(path)
            except OSError as error:
                raise LibraryError(f"{path.name} does not load: {str(error).splitlines()[0]}") from None
            _loaded[path] = stamp
        return _loaded[path]


# Impls ask for the status for each segment: a library that does not fit must not be hashed each time.
@cache
def _hash_of_sources() -> str:
    return source_hash()


@cache
def _hash_of_library(path: Path, modified_ns: int, size: int) -> str:
    return file_sha256(path)


def _checked_stamp(path: Path) -> LibraryStamp:
    """Return the stamp of a library that fits.

    Raises:
        LibraryError: it does not.
    """
    if not path.is_file():
        if os.environ.get(VARIABLE):
            raise LibraryError(f"{VARIABLE} = {path}: no such file")
        raise LibraryError(f"not built: {install_command('kernels')}")
    try:
        stamp = read_stamp(path)
    except ValueError as error:
        raise LibraryError(f"unusable library: {error}") from None
    if stamp.source_hash != _hash_of_sources():
        raise LibraryError(f"{path.name} was built from other sources: {install_command('kernels')}")
    status = path.stat()
    if stamp.library_sha256 != _hash_of_library(path, status.st_mtime_ns, status.st_size):
        raise LibraryError(f"{path.name} is not the file that {path.stem}.json describes: {install_command('kernels')}")
    if str(stamp.cuda_major) != str(torch.version.cuda).partition(".")[0]:
        raise LibraryError(
            f"{path.name} was built for CUDA {stamp.cuda_major}, this PyTorch for CUDA {torch.version.cuda}"
        )
    return stamp
