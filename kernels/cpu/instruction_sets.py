"""The instruction sets that the library is built for and those that this CPU has; the library's file and its sources.

Nothing here needs NumPy: what builds the library runs before anything is installed.
"""

import ctypes
import functools
import hashlib
import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..installation import install_command

CPUINFO = Path("/proc/cpuinfo")

SOURCES = Path(__file__).parent / "csrc"
IMAGES = Path(__file__).parents[1] / "images"
LIBRARY = Path(__file__).resolve().parents[1] / "_native" / "libmilkweed_cpu.so"

# Vectors of 16 floats are an ABI of their own only between files.
OPTIONS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wno-psabi")

VARIABLE = "MILKWEED_MAX_CPU_ISA"
"""An environment variable: the fastest set that may be used, as ONEDNN_MAX_CPU_ISA is for OpenVINO and PyTorch."""

LANES = 16


class CpuLibraryError(RuntimeError):
    """Says in one line why the kernels cannot be used."""


@dataclass(frozen=True)
class Rounding:
    """What int8 weights an instruction set likes.

    Args:
        levels: their largest magnitude.
        rms: where sums of four products have 16 bits, the largest root mean square of an output's weights, so that few
            k-steps overflow. Infinite where sums have 32 bits.
    """

    levels: int = 127
    rms: float = math.inf


AS_USUAL = Rounding()


@dataclass(frozen=True)
class InstructionSet:
    """How weights lie for an instruction set; `csrc/gemm.h` has the layout.

    Args:
        steps: panels hold a multiple of so many k-steps.
        panels: the numbers of 16 outputs that a panel may hold.
    """

    name: str
    steps: int
    panels: tuple[int, ...]
    rounding: Rounding = AS_USUAL

    def panel_for(self, outputs: int) -> int:
        """Choose how many times 16 outputs a panel holds: the number that fills up least, or else the first."""
        return min(self.panels, key=lambda nr: -(-outputs // (LANES * nr)) * nr)

    def room_for(self, outputs: int) -> int:
        """Return how many outputs fill the panels that so many take."""
        width = LANES * self.panel_for(outputs)
        return -(-outputs // width) * width


_AVX2 = {"avx2", "fma", "bmi2"}
_AVX512 = {*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}

SETS: dict[InstructionSet, tuple[frozenset[str], tuple[str, ...]]] = {
    InstructionSet("amx", 16, (2,)): (
        frozenset({*_AVX512, "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"}),
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
    ),
    InstructionSet("avx512_bf16", 1, (3, 4, 2)): (
        frozenset({*_AVX512, "avx512_bf16"}),
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),
    ),
    InstructionSet("avx512_vnni", 1, (3, 4, 2)): (frozenset(_AVX512), ("-march=x86-64-v4", "-mavx512vnni")),
    InstructionSet("avx2_vnni", 1, (2, 3, 4)): (frozenset({*_AVX2, "avx_vnni"}), ("-march=x86-64-v3", "-mavxvnni")),
    InstructionSet("avx2", 2, (2, 3, 4), Rounding(63, 20)): (frozenset(_AVX2), ("-march=x86-64-v3",)),
    InstructionSet("plain", 1, (2, 3, 4)): (frozenset(), ()),
}
"""Each set with the CPU's flags that it needs, as Linux names them, and the compiler's options; the fastest first."""


@functools.cache
def source_hash() -> str:
    """Return the hash of all that the library is made of."""
    digest = hashlib.sha256(repr((OPTIONS, sorted((isa.name, flags) for isa, (_, flags) in SETS.items()))).encode())
    for path in (*sorted(SOURCES.iterdir()), IMAGES / "jpeg.cpp", IMAGES / "resize.h"):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the flags of this CPU, none where Linux does not tell."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


def supported_sets() -> list[InstructionSet]:
    """Return the sets that this CPU has."""
    return [isa for isa, (flags, _) in SETS.items() if flags <= cpu_flags()]


def preferred_sets() -> list[InstructionSet]:
    """Return the sets that this CPU has and MILKWEED_MAX_CPU_ISA allows, the fastest first.

    Intel's CPUs take twice as long for bfloat16's own instruction as for float32's, by which AVX-512 does without it.

    Raises:
        ValueError: the variable names no set; one line.
    """
    names = [isa.name for isa in SETS]
    fastest = os.environ.get(VARIABLE) or names[0]
    if fastest not in names:
        raise ValueError(f"{VARIABLE} = {fastest!r}: there is no such instruction set, there are {', '.join(names)}")
    allowed = names[names.index(fastest) :]
    return [isa for isa in supported_sets() if isa.name in allowed and (isa.name != "avx512_bf16" or _is_amd())]


@functools.cache
def _is_amd() -> bool:
    return "AuthenticAMD" in CPUINFO.read_text()


def sources_of(library: Path) -> str:
    """Return the hash of the sources that a library was built of.

    Raises:
        CpuLibraryError: it cannot be loaded, or is another library.
    """
    try:
        return (ctypes.c_char_p.in_dll(loaded(library), "milkweed_cpu_sources").value or b"").decode()
    except ValueError as error:
        raise CpuLibraryError(f"{library} is not the library of CPU kernels: {error}") from error


@functools.cache
def loaded(library: Path) -> Any:
    """Load a library, whatever it was built of.

    Raises:
        CpuLibraryError: it is missing, or cannot be loaded.
    """
    check_processor()
    if not library.is_file():
        raise CpuLibraryError(f"the CPU kernels are not built: {install_command('cpu-kernels')}")
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise CpuLibraryError(f"the CPU kernels cannot be loaded: {error}") from error


def check_processor() -> None:
    """Raise CpuLibraryError where the kernels are for another kind of processor."""
    if platform.machine() != "x86_64":
        raise CpuLibraryError(f"the CPU kernels are for x86-64, not for {platform.machine()}")
