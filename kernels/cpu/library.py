"""Loads the library of CPU kernels and runs assembled programs; no other file knows its symbols."""

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..installation import install_command
from . import structs
from .instruction_sets import LIBRARY, CpuLibraryError, InstructionSet, loaded, preferred_sets, source_hash, sources_of
from .uint8_images import Uint8Images


class _Program(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("steps", "stages", "buffers", "helpers")),
        *((name, ctypes.c_int32) for name in ("count", "outputs", "helper_count")),
        *((name, ctypes.c_int64) for name in ("output", "pixels", "arena_bytes")),
    )


class ProgramRunner:
    """An assembled program, ready to run. Several threads may call it at a time; each has memory of its own.

    The CPU has to have its instruction set (`fastest_set`): another one ends the process.

    Args:
        threads: that may compute one image together (`start_threads`), the caller's among them.

    Raises:
        CpuLibraryError: the library is missing, or of other sources, or the system does not allow AMX.
    """

    def __init__(self, assembled: structs.Assembled, library: Path = LIBRARY, threads: int = 1) -> None:
        self._assembled = assembled  # the structure points into its arrays
        self._run = _entry(library, assembled.isa.name)
        arena_bytes = -(-(assembled.arena_bytes + structs.SLACK) // structs.ALIGNMENT) * structs.ALIGNMENT
        self._helpers = structs.aligned((threads - 1) * arena_bytes)  # what no thread uses the system does not provide
        tables = (assembled.steps, assembled.stages, assembled.buffers, self._helpers)
        self._program = _Program(
            *(array.ctypes.data for array in tables),
            *(len(assembled.steps), assembled.width + assembled.classes, threads - 1),
            *(assembled.output, assembled.size**2, arena_bytes),
        )
        self._own = threading.local()

    def __call__(self, images: NDArray[np.float32] | Uint8Images, threads: int = 1) -> NDArray[np.float32]:
        """Images (n, 3, size, size), contiguous, any number of them -> logits (n, classes); see `outputs`."""
        return self.outputs(images, threads)[:, self._assembled.width :]

    def outputs(self, images: NDArray[np.float32] | Uint8Images, threads: int = 1) -> NDArray[np.float32]:
        """Images -> (n, width + classes): what the classifier reads in float32, and then the logits.

        Args:
            images: normalised, or levels, which the first layer's rows are made of without a float image between.
            threads: that may compute an image, the caller's among them; those join that have nothing to do when it
                begins. The bits are the same with any number.
        """
        whole = self._assembled
        values: NDArray[Any] = images.pixels if isinstance(images, Uint8Images) else images
        normal = images.normal.ctypes.data if isinstance(images, Uint8Images) else None
        self._check(values, normal is not None)
        if not hasattr(self._own, "arena"):
            self._own.arena = structs.aligned(whole.arena_bytes + structs.SLACK)
        outputs = np.empty((len(values), whole.width + whole.classes), np.float32)
        data = (array.ctypes.data for array in (whole.constants, self._own.arena, values))
        run = *data, normal, len(values), outputs.ctypes.data, threads
        self._own.helped = self._run(ctypes.addressof(self._program), *run)
        return outputs

    def _check(self, images: NDArray[Any], levels: bool) -> None:
        """Refuse what the library would read otherwise."""
        size = self._assembled.size
        shape, dtype = ((size, size, 4), np.uint8) if levels else ((3, size, size), np.float32)
        if images.shape[1:] != shape:
            raise ValueError(f"images of shape {images.shape}: (n, {', '.join(map(str, shape))}) is taken")
        if images.dtype != dtype or not images.flags.c_contiguous:
            raise ValueError(f"images of {images.dtype}: contiguous {np.dtype(dtype)} is taken")

    def helped(self) -> int:
        """Return how many threads helped in this thread's last call, summed over its images."""
        return int(getattr(self._own, "helped", 0))


def start_threads(threads: int, library: Path = LIBRARY) -> int:
    """Let so many threads of this process compute at most, callers among them; return how many there are.

    They are fewer where the system allows no more, and in a fork of the process, which has none of them.

    Raises:
        CpuLibraryError: the library is missing, or of other sources.
    """
    return int(_checked(library).milkweed_team(threads))


@contextmanager
def busy_thread() -> Iterator[None]:
    """Count the calling thread as busy for the block, with something that no program computes.

    So a team of an image is no larger than there are cores left. Without the library there are no teams, nor is there
    anything to count.
    """
    count = _working_counter()
    count(1)
    try:
        yield
    finally:
        count(-1)


@functools.cache
def _working_counter() -> Callable[[int], object]:
    try:
        counter: Callable[[int], object] = _checked(LIBRARY).milkweed_count_working
    except CpuLibraryError:
        return lambda more: None
    return counter


def fastest_set(library: Path = LIBRARY) -> InstructionSet:
    """Return the fastest instruction set of this CPU that the system and MILKWEED_MAX_CPU_ISA let a process use.

    Raises:
        CpuLibraryError: the library is missing, or of other sources, or the variable names no instruction set.
    """
    try:
        return next(isa for isa in preferred_sets() if _allowed(library, isa.name))
    except ValueError as error:
        raise CpuLibraryError(str(error)) from error


def _allowed(library: Path, name: str) -> bool:
    """Whether the system lets the process use an instruction set; for AMX it has to be asked."""
    request = _checked(library).milkweed_request_tiles
    request.restype = ctypes.c_bool
    return name != "amx" or bool(request())


def multiply_again(isa: InstructionSet, *, eight_bits: bool, repeats: int, library: Path = LIBRARY) -> int:
    """Multiply one panel so many times, and return the multiply-accumulates; the fastest that a thread can be, to time.

    Raises:
        CpuLibraryError: the library cannot be used here.
    """
    if not _allowed(library, isa.name):
        raise CpuLibraryError("this system does not let a process use AMX's tiles")
    peak = getattr(_checked(library), f"milkweed_peak_{isa.name}")
    peak.restype = ctypes.c_int64
    return int(peak(int(eight_bits), isa.panels[0], repeats))


@functools.cache
def resize_entry(name: str = "", library: Path = LIBRARY) -> Any:
    """Return the library's `resize` for an instruction set, or the fastest one; `csrc/isa.cpp` has its arguments.

    Raises:
        CpuLibraryError: the library is missing, or of other sources.
    """
    entry = getattr(_checked(library), f"milkweed_resize_{name or fastest_set(library).name}")
    entry.argtypes = [ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 4]
    entry.restype = None
    return entry


@functools.cache
def jpeg_entry(library: Path = LIBRARY) -> Any:
    """Return the library's JPEG decoder; `images/jpeg.cpp` has its arguments.

    Raises:
        CpuLibraryError: the library is missing, or of other sources, or was built without libjpeg-turbo.
    """
    try:
        entry = _checked(library).milkweed_decode_jpeg
    except AttributeError as error:
        raise CpuLibraryError("the CPU kernels were built without libjpeg-turbo") from error
    entry.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_size_t]
    entry.restype = ctypes.c_bool
    return entry


def _checked(library: Path) -> Any:
    """The library of these sources: one of others may read the structures in another way."""
    if sources_of(library) != source_hash():
        raise CpuLibraryError(f"the CPU kernels were built of other sources: {install_command('cpu-kernels')}")
    return loaded(library)


def _entry(library: Path, name: str) -> Any:
    if not _allowed(library, name):
        raise CpuLibraryError("this system does not let a process use AMX's tiles")
    entry = getattr(_checked(library), f"milkweed_run_{name}")
    entry.argtypes = [*[ctypes.c_void_p] * 5, ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    entry.restype = ctypes.c_int
    return entry
