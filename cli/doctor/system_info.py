"""Gathers facts about the machine once, by the same functions that the service calls at its start."""

import os
import platform
import re
import resource
import shutil
import sys
import warnings
from dataclasses import dataclass, field
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ...inference.backend import has_torch
from ...inference.device import CPU, computes_in_bfloat16, usable_cores
from ...models.programs.session import instruction_set, kernels_refusal
from ...server.telemetry.nvml import driver_version
from ...server.telemetry.system_metrics import container_memory

if TYPE_CHECKING:
    from ...models.serving.fused.device_kernels import KernelTools

SHM = Path("/dev/shm")
CPU_INFO = Path("/proc/cpuinfo")
PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY = "0x10de", "0x03"

NO_GPU = "no NVIDIA GPU is here"
CAPABILITIES = (("avx512f", "AVX512"), ("avx2", "AVX2"))
"""The widest vectors of a CPU, by its flag."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that torch sees.

    Args:
        kernels: why the native kernels cannot be used on it; None where they can.
    """

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    kernels: str | None


@dataclass(frozen=True, kw_only=True)
class SystemInfo:
    """The facts; sizes are in bytes.

    Args:
        cores: the cores that this process may use, out of `machine_cores`.
        flags: the CPU's flags, as Linux names them.
        cpu_capability: the widest vectors that the CPU has.
        bfloat16: whether the CPU computes in bfloat16.
        memory_limit: the limit of the container; None where it has none.
        shm_free: the free space of /dev/shm; None where there is none.
        files: the most files that may be open.
        cuda: the CUDA version of this torch; None where it is built without, or not installed.
        cuda_error: why torch cannot use a GPU; "" where it can.
        cpu_kernels: the instruction set that our CPU kernels use; "" where they cannot be used.
        cpu_kernels_error: why not; None where they can.
        kernels: of GPUs; None where there is no GPU that they could be for, and torch is not imported to ask.
        gpus_on_bus: how many NVIDIA GPUs the PCI bus has, whether or not a driver knows them.
        packages: the versions of all installed packages, by name.
    """

    system: str
    python: str
    cpu: str
    cores: int
    machine_cores: int
    flags: frozenset[str]
    cpu_capability: str
    bfloat16: bool
    memory: int
    memory_limit: int | None
    shm_free: int | None
    files: int
    cuda: str | None
    cuda_error: str
    driver: str | None
    gpus: tuple[Gpu, ...]
    gpus_on_bus: int
    kernels: "KernelTools | None"
    cpu_kernels: str
    cpu_kernels_error: str | None
    packages: dict[str, str] = field(default_factory=dict)


def gather() -> SystemInfo:
    """Gather the facts; this starts no GPU work and opens no connection."""
    cpu, flags = _cpu()
    limit = container_memory()
    driver, on_bus, cuda, cpu_kernels_error = driver_version(), _gpus_on_bus(), _torch_cuda(), kernels_refusal()
    looked = has_torch() and (driver is not None or on_bus > 0)
    cuda_error, gpus, kernels = _gpus(cuda) if looked else (NO_GPU, (), None)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return SystemInfo(
        system=platform.platform(),
        python=platform.python_version(),
        cpu=cpu,
        cores=usable_cores(),
        machine_cores=os.cpu_count() or 1,
        flags=flags,
        cpu_capability=next((name for flag, name in CAPABILITIES if flag in flags), "no AVX2"),
        bfloat16=computes_in_bfloat16(CPU),
        memory=psutil.virtual_memory().total,
        memory_limit=limit.limit if limit else None,
        shm_free=shutil.disk_usage(SHM).free if SHM.is_dir() else None,
        files=sys.maxsize if hard == resource.RLIM_INFINITY else hard,
        cuda=cuda,
        cuda_error=cuda_error,
        driver=driver,
        gpus=gpus,
        gpus_on_bus=on_bus,
        kernels=kernels,
        cpu_kernels="" if cpu_kernels_error else instruction_set(),
        cpu_kernels_error=cpu_kernels_error,
        packages=_packages(),
    )


def _cpu() -> tuple[str, frozenset[str]]:
    """Return the CPU's model and flags."""
    try:
        lines = [line.partition(":") for line in CPU_INFO.read_text().splitlines()]
    except OSError:
        return platform.processor() or platform.machine(), frozenset()
    found = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    return found.get("model name") or platform.machine(), frozenset(found.get("flags", "").split())


def _torch_cuda() -> str | None:
    """Return the CUDA version that the installed torch is built for, without importing it."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).with_name("version.py")
    found = re.search(r"^cuda\b[^=]*= '([^']+)'", file.read_text() if file.is_file() else "", re.MULTILINE)
    return found[1] if found else None


def _gpus(cuda: str | None) -> "tuple[str, tuple[Gpu, ...], KernelTools]":
    """Return why torch can use no GPU, or "" and the GPUs; and the tools for their kernels."""
    import torch

    from ...models.serving.fused.device_kernels import kernel_tools

    error = _cuda_error(cuda)
    gpus = () if error else tuple(_gpu(index) for index in range(torch.cuda.device_count()))
    return error, gpus, kernel_tools()


def _cuda_error(cuda: str | None) -> str:
    """Return the first sentence of why torch can use no GPU."""
    import torch

    if cuda is None:
        return "this PyTorch is built without CUDA"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says the same
            torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0].partition(". ")[0].rstrip(".")
    return "" if torch.cuda.device_count() else "the driver shows no GPU to this process"


def _gpu(index: int) -> Gpu:
    import torch

    from ...models.serving.fused.device_kernels import device_kernels

    found = torch.cuda.get_device_properties(index)
    refusal = device_kernels(torch.device("cuda", index)).refusal
    return Gpu(found.name, (found.major, found.minor), found.total_memory, refusal)


def _gpus_on_bus() -> int:
    try:
        devices = list(PCI.iterdir())
        return sum(
            (device / "vendor").read_text().strip() == _NVIDIA and (device / "class").read_text().startswith(_DISPLAY)
            for device in devices
        )
    except OSError:
        return 0


def _packages() -> dict[str, str]:
    """Return the version of each installed package: of two with one name the first on the path, which is imported."""
    found = reversed(list(distributions()))
    # An interrupted pip leaves folders without a name behind.
    return {each.name.lower().replace("_", "-"): each.version for each in found if each.name}
