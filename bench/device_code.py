"""Reads compiled device code with cuobjdump: registers, stack and the width of memory accesses of every kernel."""

import ctypes
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_SASS_MEMORY = re.compile(r"\b(STG|STL|LDL)((?:\.\w+)*)")

NUMBERS = {"__nv_bfloat16": "mw::bf16", "__half": "mw::fp16"}
"""CUDA's names of the number types and the kernels' own."""


class NoTool(RuntimeError):
    """There is no cuobjdump."""


@dataclass(frozen=True)
class Usage:
    """What one kernel takes.

    Args:
        registers: of a thread.
        stack_bytes: of a thread, in local memory: above 0 where registers are spilled.
        local_bytes: further local memory.
    """

    registers: int
    stack_bytes: int
    local_bytes: int

    @property
    def spilled_bytes(self) -> int:
        """These kernels have no arrays of their own in local memory: what is there was spilled."""
        return self.stack_bytes + self.local_bytes

    @property
    def spills(self) -> bool:
        return self.spilled_bytes > 0


@cache
def cuobjdump() -> Path:
    """The tool, from a CUDA toolkit or from Triton's package, which comes with PyTorch for CUDA.

    Raises:
        NoTool: neither is there.
    """
    found = shutil.which("cuobjdump")
    if found:
        return Path(found)
    triton = find_spec("triton")
    if triton is not None and triton.origin is not None:
        tool = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        if tool.exists():
            return tool
    raise NoTool("no cuobjdump: it comes with the CUDA toolkit and with triton")


def resource_usage(file: Path) -> dict[str, dict[str, Usage]]:
    """{architecture: {kernel: usage}} of a library, object or cubin; kernels by their full name, `mw::...`."""
    found: dict[str, dict[str, Usage]] = {}
    arch, kernel = "", ""
    for line in _dump(file, "-res-usage").splitlines():
        if match := re.search(r"arch = sm_(\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function (\w+):", line):
            kernel = kernel_name(match[1])
        elif match := re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", line):
            found.setdefault(arch, {})[kernel] = Usage(int(match[1]), int(match[2]), int(match[3]))
    return found


def memory_instructions(file: Path, arch: str | None = None) -> dict[str, Counter[str]]:
    """{kernel: how many of each store to global memory and access to local memory}: `STG.128`, `STG.32`, `LDL`..."""
    found: dict[str, Counter[str]] = {}
    counts: Counter[str] = Counter()
    selection = ("-arch", f"sm_{arch}") if arch else ()
    for line in _dump(file, "-sass", *selection).splitlines():
        if match := re.match(r"\s*Function : (\w+)", line):
            counts = found.setdefault(kernel_name(match[1]), Counter())
        elif match := _SASS_MEMORY.search(line):
            counts[_access(match[1], match[2].split("."))] += 1
    return found


def _access(instruction: str, modifiers: list[str]) -> str:
    if instruction != "STG":
        return instruction
    widths = {"128": 128, "64": 64, "U16": 16, "S16": 16, "U8": 8, "S8": 8}
    return f"STG.{next((widths[m] for m in modifiers if m in widths), 32)}"


def kernel_name(mangled: str) -> str:
    """`_ZN2mw...` -> `mw::name<...>` as the sources spell it, without arguments; other names as they are."""
    name = _demangled(mangled)
    for theirs, ours in NUMBERS.items():
        name = name.replace(theirs, ours)
    return name.removeprefix("void ").rpartition("(")[0] or name


def _demangled(mangled: str) -> str:
    runtime = ctypes.CDLL("libstdc++.so.6")
    runtime.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    address = runtime.__cxa_demangle(mangled.encode(), None, None, ctypes.byref(status))
    if not address:
        return mangled
    text = ctypes.string_at(address).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(address))
    return text


def _dump(file: Path, *options: str) -> str:
    done = subprocess.run([cuobjdump(), *options, file], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoTool(f"cuobjdump {' '.join(options)} {file} failed: {done.stderr.strip()[:500]}")
    return done.stdout
