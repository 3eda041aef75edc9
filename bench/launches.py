"""Which CUDA kernels the launch functions choose for published shapes, asked of the functions themselves on a CPU."""

import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..kernels.native.stamp import SOURCES
from ..kernels.native.toolchain import run_compiler

ROOT = Path(__file__).resolve().parent.parent
EMULATOR = ROOT / "tests" / "kernels" / "csrc"
RECORDER = ROOT / "bench" / "launches.cpp"


@dataclass(frozen=True)
class Launch:
    """One kernel of one call.

    Args:
        op: name of the operator.
        problem: a shape, in words.
        dtype: `bfloat16` or `float16`.
        tile: the variant that was asked for.
        kernel: full name with template arguments, `mw::attention::short_attention<...>`.
        arguments: type of its one parameter.
        threads: of a block.
        shared_bytes: of a block.
    """

    op: str
    problem: str
    dtype: str
    tile: int
    kernel: str
    arguments: str
    threads: int
    shared_bytes: int


@cache
def recorded_launches(cxx: str = "g++") -> tuple[Launch, ...]:
    """Every launch of the problems in launches.cpp; tiles that a problem does not have are left out.

    Needs a checkout and a C++ compiler, no CUDA.

    Raises:
        BuildError: the compiler failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "launches"
        flags = ["-std=c++20", "-O0", "-Wno-unknown-pragmas", "-DMILKWEED_EMULATE", f"-I{SOURCES}", f"-I{EMULATOR}"]
        run_compiler([cxx, *flags, str(RECORDER), "-o", str(program)], RECORDER.name)
        lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split("|") for line in lines]
    return tuple(
        Launch(op, problem, dtype, int(tile), *_signature(name[0]), int(name[1]), int(name[2]))
        for op, problem, dtype, tile, *name in rows
        if len(name) == 3
    )


def _signature(name: str) -> tuple[str, str]:
    """`mw::Name<&(void KERNEL(ARGUMENTS))>` -> KERNEL, ARGUMENTS."""
    kernel, _, arguments = name.removeprefix("mw::Name<&(void ").removesuffix("))>").rpartition("(")
    return kernel, arguments
