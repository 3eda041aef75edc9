"""Reads compiled device code with cuobjdump: what every kernel spills, how it stores, what it waits for; by name."""

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest


def cuobjdump() -> Path:
    """The tool, from a CUDA toolkit or from Triton's package, which comes with PyTorch for CUDA, or a skip."""
    found = shutil.which("cuobjdump")
    if found:
        return Path(found)
    triton = find_spec("triton")
    if triton is not None and triton.origin is not None:
        tool = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        if tool.exists():
            return tool
    pytest.skip("no cuobjdump: it comes with the CUDA toolkit and with triton")


def spilled_bytes(code: Path) -> dict[str, int]:
    """Bytes of local memory that a thread takes. The kernels have no arrays there, so what is there was spilled."""
    rows = re.findall(r"Function (\w+):\s+REG:\d+ STACK:(\d+) .*LOCAL:(\d+)", _dump(code, "-res-usage"))
    return {kernel: int(stack) + int(local) for kernel, stack, local in rows}


def memory_instructions(code: Path) -> dict[str, list[str]]:
    """The instructions that use global memory or order kernels, in order.

    `STG.E.128` writes 128 bits, `STG.E` 32; ACQBULK is griddepcontrol.wait, PREEXIT griddepcontrol.launch_dependents.
    """
    _, *parts = re.split(r"Function : (\w+)", _dump(code, "-sass"))
    wanted = r"\b(?:LDG|LDGSTS|STG|RED|ATOMG|ACQBULK|PREEXIT)\b[\w.]*"
    return {kernel: re.findall(wanted, text) for kernel, text in zip(parts[::2], parts[1::2], strict=True)}


def _dump(code: Path, option: str) -> str:
    return subprocess.run([cuobjdump(), option, code], stdout=subprocess.PIPE, text=True, check=True).stdout
