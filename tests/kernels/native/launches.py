"""Asks the launch functions, on a CPU, which CUDA kernels they choose for published shapes."""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from milkweed.kernels.native.stamp import SOURCES
from milkweed.kernels.native.toolchain import run_compiler

HERE = Path(__file__).resolve().parent
EMULATOR = HERE.parent / "csrc"


@dataclass(frozen=True)
class Launch:
    """One kernel of one call.

    Args:
        header: file that defines it.
        kernel: full name with template arguments, `mw::attention::short_attention<...>`.
        arguments: type of its one parameter.
        threads: of a block.
        shared_bytes: of a block.
    """

    header: str
    kernel: str
    arguments: str
    threads: int
    shared_bytes: int


def chosen_launches(header: str) -> list[Launch]:
    """The launches of launches.cpp in this header, bfloat16, or a skip where there is no compiler to ask with."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to ask the launch functions with")
    return [launch for launch in _recorded() if launch.header == header]


@cache
def _recorded() -> tuple[Launch, ...]:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "launches"
        flags = ["-std=c++20", "-O0", "-Wno-unknown-pragmas", "-DMILKWEED_EMULATE", f"-I{SOURCES}", f"-I{EMULATOR}"]
        run_compiler(["g++", *flags, str(HERE / "launches.cpp"), "-o", str(program)], "launches.cpp")
        lines = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    rows = [line.split("|") for line in lines]
    return tuple(Launch(header, *_signature(name), int(threads), int(shared)) for header, name, threads, shared in rows)


def _signature(name: str) -> tuple[str, str]:
    """`mw::Name<&(void KERNEL(ARGUMENTS))>` -> KERNEL, ARGUMENTS."""
    kernel, _, arguments = name.removeprefix("mw::Name<&(void ").removesuffix("))>").rpartition("(")
    return kernel, arguments
