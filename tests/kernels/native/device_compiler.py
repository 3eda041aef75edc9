"""Compiles kernels of csrc for a GPU, without a GPU: with nvcc, or with the NVRTC that comes with PyTorch for CUDA."""

import contextlib
import importlib
import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from milkweed.kernels.native.stamp import SOURCES
from milkweed.kernels.native.toolchain import BuildError, find_toolchain

from .launches import Launch

# What returns `const char*` launches kernels: host code, with which a compiler would compile them all.
_LAUNCHERS = re.compile(
    r"^(template <[^\n]*>\n)?(inline )?const char\* \w+\((?:[^{;]*\)) \{(?:[^\n]*\}\n|\n.*?^\}\n)",
    re.MULTILINE | re.DOTALL,
)

PRELUDE = "using uintptr_t = unsigned long long;\n"


def _nvrtc() -> Any:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="no NVRTC: it comes with PyTorch for CUDA")
    if nvrtc.nvrtcVersion()[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        pytest.skip("NVRTC cannot be loaded")
    return nvrtc


def cuda_include() -> Path:
    """The folder of cuda_bf16.h, or a skip."""
    folders = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    with contextlib.suppress(ImportError):
        folders += [Path(place) / "cu13" for place in importlib.import_module("nvidia").__path__]
    for folder in (*folders, Path("/usr/local/cuda")):
        if (folder / "include" / "cuda_bf16.h").exists():
            return folder / "include"
    pytest.skip("no CUDA headers: they come with PyTorch for CUDA")


def device_headers() -> dict[str, str]:
    """The kernels' headers without their launch functions."""
    return {
        path.relative_to(SOURCES).as_posix(): _LAUNCHERS.sub("", path.read_text())
        for path in sorted(SOURCES.rglob("*.cuh"))
    }


def compile_kernels(header: str, launches: Iterable[Launch], arch: str, folder: Path) -> tuple[Path, str]:
    """Machine code of these kernels and of no others, by the compiler that builds the library where it is there.

    Returns:
        The file, and what made it: `nvcc` or `nvrtc`.

    Raises:
        AssertionError: the compiler complained; what it said.
    """
    kernels = dict.fromkeys(f"template __global__ void {launch.kernel}({launch.arguments});" for launch in launches)
    source = "\n".join([f'#include "{header}"', *kernels, ""])
    code = folder / "kernels.cubin"
    try:
        nvcc = find_toolchain().nvcc
    except BuildError:
        code.write_bytes(_by_nvrtc(source, arch))
        return code, "nvrtc"
    _by_nvcc(str(nvcc), source, arch, code)
    return code, "nvcc"


def _by_nvcc(nvcc: str, source: str, arch: str, code: Path) -> None:
    for name, text in device_headers().items():
        (code.parent / name).parent.mkdir(exist_ok=True)
        (code.parent / name).write_text(text)
    (code.parent / "kernels.cu").write_text(source)
    options = ["-std=c++20", "-O3", "-Werror=all-warnings", f"-I{code.parent}", f"-arch=sm_{arch}", "-cubin"]
    command = [nvcc, *options, "-o", str(code), str(code.parent / "kernels.cu")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{(done.stdout + done.stderr)[:5000]}"


def _by_nvrtc(source: str, arch: str) -> bytes:
    nvrtc, include = _nvrtc(), cuda_include()
    headers = {**device_headers(), "initializer_list": "", "cstdint": "", "cstddef": ""}
    texts, names = [text.encode() for text in headers.values()], [name.encode() for name in headers]
    program = _checked(nvrtc.nvrtcCreateProgram((PRELUDE + source).encode(), b"kernels.cu", len(headers), texts, names))
    options = ["-std=c++20", "-default-device", f"-arch=sm_{arch}", f"-I{include}", f"-I{include / 'cccl'}"]
    (outcome,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    said = _room(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
    nvrtc.nvrtcGetProgramLog(program, said)
    complaint = said.rstrip(b"\0 \n").decode(errors="replace")
    assert outcome == nvrtc.nvrtcResult.NVRTC_SUCCESS, f"sm_{arch}:\n{complaint[:5000]}"
    assert "warning" not in complaint, f"sm_{arch}:\n{complaint[:5000]}"
    size = _checked(nvrtc.nvrtcGetCUBINSize(program))
    code = _room(size)
    _checked(nvrtc.nvrtcGetCUBIN(program, code))
    nvrtc.nvrtcDestroyProgram(program)
    return code[:size]


def _room(size: int) -> bytes:
    """Bytes for NVRTC to write into. Never a single one: Python has one object for each of those, and all share it."""
    return b" " * (size + 2)


def _checked(answer: tuple[Any, ...]) -> Any:
    assert int(answer[0]) == 0, f"NVRTC: {answer[0]}"
    return answer[1] if len(answer) > 1 else None
