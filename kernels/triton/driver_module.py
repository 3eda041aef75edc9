"""Compiles Triton's C module for the CUDA driver ahead of time, so that Triton needs no C compiler where it runs.

    python -m milkweed.kernels.triton.driver_module

Triton compiles one C file, `cuda_utils`, before its first launch: the same one for all kernels and all GPUs. The image
has this module instead of a compiler, and its environment names `cache.DriverModuleCache`, which hands it to Triton.
"""

import os
import subprocess
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

DRIVER_MODULE = Path(__file__).resolve().parents[1] / "_native" / f"cuda_utils{sysconfig.get_config_var('EXT_SUFFIX')}"
"""Where the module is: beside the library of CUDA kernels, named for this version of Python."""

CACHE_MANAGER = "milkweed.kernels.triton.cache:DriverModuleCache"
"""The value of TRITON_CACHE_MANAGER with which Triton takes the module."""


def takes_driver_module() -> bool:
    """Return whether the module is there and Triton's cache answers with it."""
    return os.environ.get("TRITON_CACHE_MANAGER") == CACHE_MANAGER and DRIVER_MODULE.is_file()


def build_driver_module(path: Path = DRIVER_MODULE) -> None:
    """Compile the module of the installed Triton; needs gcc and Python's headers, no GPU and no driver.

    Raises:
        ModuleNotFoundError: triton is not installed.
        CalledProcessError: gcc failed.
    """
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package triton is not installed")
    backend = Path(spec.origin).parent / "backends" / "nvidia"
    headers = (backend / "include", sysconfig.get_paths("posix_prefix")["include"])
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # The driver comes with the machine that has a GPU. What is linked here is an empty library of its name.
        driver = Path(folder) / "libcuda.so.1"
        gcc = ["gcc", "-shared", "-fPIC", "-O3", "-s", "-Wl,--no-as-needed", *(f"-I{folder}" for folder in headers)]
        subprocess.run([*gcc, f"-Wl,-soname,{driver.name}", "-x", "c", os.devnull, "-o", driver], check=True)
        subprocess.run([*gcc, backend / "driver.c", driver, "-o", path], check=True)


if __name__ == "__main__":
    build_driver_module()
    print(DRIVER_MODULE)
