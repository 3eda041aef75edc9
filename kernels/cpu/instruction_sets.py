"""The instruction sets that the library is built for, those that this CPU has, and the hash of what is built."""

import functools
import hashlib
import os
from pathlib import Path

from .packing import InstructionSet, Rounding

CPUINFO = Path("/proc/cpuinfo")

SOURCES = Path(__file__).parent / "csrc"
RESIZE = Path(__file__).parents[1] / "images" / "resize.h"

# Vectors of 16 floats are an ABI of their own only between files.
OPTIONS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wno-psabi")

VARIABLE = "MILKWEED_MAX_CPU_ISA"
"""An environment variable: the fastest set that may be used, as ONEDNN_MAX_CPU_ISA is for OpenVINO and PyTorch."""

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
    for path in (*sorted(SOURCES.iterdir()), RESIZE):
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
