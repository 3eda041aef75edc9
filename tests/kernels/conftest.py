"""Builds the CUDA kernels' own sources for a CPU, under the emulator of tests/kernels/csrc, and loads them."""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEVICE_CODE = ROOT / "kernels" / "csrc"
EMULATION = Path(__file__).parent / "csrc"

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g")

Build = Callable[..., ctypes.CDLL]


def compiler() -> str:
    """The host C++ compiler, or a skip that says it is missing."""
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if not found:
        pytest.skip("no C++ compiler (g++, c++, clang++ or $CXX) to build the emulated kernels with")
    return found


def build_emulated(
    name: str,
    *,
    mutations: Mapping[str, tuple[str, str]] | None = None,
    defines: tuple[str, ...] = (),
) -> ctypes.CDLL:
    """Compile tests/kernels/csrc/<name>_emulated.cpp and load it; the same sources are compiled once a machine.

    Args:
        mutations: {header of kernels/csrc: (text, replacement)}: planted bugs; the text must occur exactly once.
        defines: preprocessor definitions, `NAME=VALUE`.
    """
    source = EMULATION / f"{name}_emulated.cpp"
    headers = included_headers(source)
    for header, (text, replacement) in (mutations or {}).items():
        assert headers[header].count(text) == 1, f"{header}: {text!r} occurs {headers[header].count(text)} times"
        headers[header] = headers[header].replace(text, replacement)
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    flags += ["-DMILKWEED_EMULATE", *(f"-D{define}" for define in defines)]
    if os.environ.get("MILKWEED_EMULATE_SANITIZE"):
        flags += SANITIZERS
    emulator = [path.read_text() for path in sorted(EMULATION.glob("*.h"))]
    parts = [*flags, compiler(), source.read_text(), *emulator, *headers.values()]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    library = Path(tempfile.gettempdir()) / f"milkweed-emulated-{os.getuid()}" / f"{name}-{digest}.so"
    if not library.exists():
        _compile(source, headers, flags, library)
    return ctypes.CDLL(str(library))


def included_headers(source: Path) -> dict[str, str]:
    """The headers of kernels/csrc that a source includes, directly or not, by name: what its build depends on."""
    found: dict[str, str] = {}
    waiting = [source.read_text()]
    while waiting:
        for name in re.findall(r'^\s*#include "([^"]+)"', waiting.pop(), re.MULTILINE):
            if name not in found and (DEVICE_CODE / name).exists():
                found[name] = (DEVICE_CODE / name).read_text()
                waiting.append(found[name])
    return dict(sorted(found.items()))


def _compile(source: Path, headers: Mapping[str, str], flags: list[str], library: Path) -> None:
    library.parent.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        for header, text in headers.items():
            (Path(scratch) / header).parent.mkdir(exist_ok=True)
            (Path(scratch) / header).write_text(text)
        made = Path(scratch) / "made.so"
        command = [compiler(), *flags, f"-I{scratch}", f"-I{EMULATION}", str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-6000:]}"
        made.replace(library)  # atomic: another test process may be building the same


@pytest.fixture(scope="session")
def emulated() -> Build:
    """`emulated("monarch_mlp", mutations=..., defines=...)`: the library of an emulated kernel."""
    return build_emulated


@pytest.fixture(scope="session")
def host_compiler() -> str:
    """The compiler that the emulated kernels are built with."""
    return compiler()
