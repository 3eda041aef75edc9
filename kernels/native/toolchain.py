"""Finds and checks the compilers and headers that the kernel library is built with."""

import importlib.metadata
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

OLDEST_NVCC = (12, 8)
"""The first version that knows sm_100a and sm_120a."""


class BuildError(RuntimeError):
    """Says why the library cannot be built: one line for people, then what the compiler printed."""


@dataclass(frozen=True)
class Toolchain:
    """The compilers and headers.

    Args:
        nvcc: path of the compiler driver.
        version: version of nvcc, `13.0`.
        cxx: the C++ compiler that nvcc uses and that links.
        torch_include: folder of PyTorch's headers.
        torch_version: version of those headers.
    """

    nvcc: Path
    version: str
    cxx: str
    torch_include: Path
    torch_version: str


def find_toolchain() -> Toolchain:
    """Find the toolchain of this machine.

    Raises:
        BuildError: there is no nvcc or no C++ compiler, or nvcc is too old or of another CUDA than PyTorch.
    """
    nvcc = _find_nvcc()
    version = _nvcc_version(nvcc)
    cxx = os.environ.get("NVCC_CCBIN") or "g++"
    if shutil.which(cxx) is None:
        raise BuildError(f"no C++ compiler {cxx}: install g++, or name one in NVCC_CCBIN")
    return Toolchain(nvcc, version, cxx, Path(torch.__file__).parent / "include", str(torch.__version__))


def nvcc_candidates() -> list[Path]:
    """Return where nvcc may be, in order of preference: CUDA_HOME, PATH, pip's nvidia-cuda-nvcc, /usr/local/cuda."""
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    candidates = [home / "bin" / "nvcc" for home in homes]
    on_path = shutil.which("nvcc")
    if on_path:
        candidates.append(Path(on_path))
    candidates += _pip_nvcc()
    candidates.append(Path("/usr/local/cuda/bin/nvcc"))
    return candidates


def _pip_nvcc() -> list[Path]:
    try:
        files = importlib.metadata.files("nvidia-cuda-nvcc") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.name == "nvcc" and file.parent.name == "bin"]


def _find_nvcc() -> Path:
    for candidate in nvcc_candidates():
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return candidate
    raise BuildError("no nvcc: install the CUDA toolkit and put its bin folder on PATH, or set CUDA_HOME")


def _nvcc_version(nvcc: Path) -> str:
    done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    cuda = re.search(r"release (\d+)\.(\d+)", done.stdout)
    if done.returncode or not cuda:
        raise BuildError(f"{nvcc} --version says nothing usable: {(done.stderr or done.stdout).strip()[:200]}")
    version = (int(cuda[1]), int(cuda[2]))
    if version < OLDEST_NVCC:
        raise BuildError(f"{nvcc} is version {cuda[1]}.{cuda[2]}: {OLDEST_NVCC[0]}.{OLDEST_NVCC[1]} or newer is needed")
    of_torch = torch.version.cuda
    if of_torch is not None and int(of_torch.partition(".")[0]) != version[0]:
        raise BuildError(f"{nvcc} is of CUDA {cuda[1]}.{cuda[2]}, this PyTorch of CUDA {of_torch}: the major differs")
    return f"{cuda[1]}.{cuda[2]}"


def run_compiler(command: list[str], what: str, cwd: Path | None = None) -> str:
    """Run a compiler and return what it printed.

    Raises:
        BuildError: it failed; the message names the cause if it is a known one.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    said = done.stdout + done.stderr
    if done.returncode == 0:
        return said
    if "unsupported GNU version" in said:
        raise BuildError(f"{what}: g++ is too new for this nvcc; name an older one in NVCC_CCBIN\n{said}")
    if "unsupported gpu architecture" in said.lower():
        raise BuildError(f"{what}: this nvcc does not know an architecture that was asked for\n{said}")
    raise BuildError(f"{what}: the compiler failed with status {done.returncode}\n{said}")
