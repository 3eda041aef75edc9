"""Checks the GPUs: whether torch can use them, and whether our kernels run on them."""

import runpy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...inference.backend import has_torch
from ...server.telemetry.nvml import driver_version
from .finding import Finding, Status
from .packages import package_version

if TYPE_CHECKING:
    from ...models.serving.fused.device_kernels import KernelTools

PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY = "0x10de", "0x03"

MIN_CAPABILITY = (8, 0)
"""Bfloat16, the Triton kernels and the native kernels need Ampere."""

TORCH_FIX = "pip install --force-reinstall torch"

_row = partial(Finding, "GPU")


@dataclass(frozen=True)
class Gpu:
    """A GPU that torch sees; `refusal` is why the native kernels cannot be used on it, None where they can."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    refusal: str | None


@dataclass(frozen=True, kw_only=True)
class GpuInfo:
    """What the driver, the bus and torch know of the GPUs.

    Args:
        cuda: the CUDA version of the installed torch; None where it is built without, or not installed.
        cuda_error: why torch cannot use a GPU; "" where it can, or there is none.
        on_bus: how many NVIDIA GPUs the PCI bus has, whether or not a driver knows them.
        tools: None where there is no GPU that they could be for, and torch is not imported to ask.
    """

    cuda: str | None = None
    cuda_error: str = ""
    driver: str | None = None
    on_bus: int = 0
    gpus: tuple[Gpu, ...] = ()
    tools: "KernelTools | None" = None


def gpu_info() -> GpuInfo:
    """Ask all of them; this starts no GPU work."""
    cuda, driver, on_bus = _cuda(), driver_version(), _gpus_on_bus()
    if not has_torch() or (driver is None and not on_bus):
        return GpuInfo(cuda=cuda, cuda_error="PyTorch is not installed", driver=driver, on_bus=on_bus)
    import torch

    from ...models.serving.fused.device_kernels import kernel_tools

    error = _cuda_error()
    gpus = () if error else tuple(_gpu(index) for index in range(torch.cuda.device_count()))
    return GpuInfo(cuda=cuda, cuda_error=error, driver=driver, on_bus=on_bus, gpus=gpus, tools=kernel_tools())


def gpu_findings(info: GpuInfo) -> Iterator[Finding]:
    """Make a row each for PyTorch, the driver, every GPU, the kernel library, and what compiles kernels."""
    yield _torch_row(info)
    yield _driver_row(info)
    for index, gpu in enumerate(info.gpus):
        yield _gpu_row(index, gpu)
    if info.tools is not None:
        yield from _tool_rows(info.tools, with_gpu=bool(info.gpus))


def _torch_row(info: GpuInfo) -> Finding:
    version = package_version("torch")
    if version is None:
        text = "not installed: graphs, and programs of our CPU kernels, are served without it"
        return _row("PyTorch", "missing", text, "pip install 'milkweed[torch]'")
    if info.cuda is not None:
        return _row("PyTorch", "ok", f"{version}, built for CUDA {info.cuda}")
    if info.on_bus or info.driver is not None:
        return _row("PyTorch", "warning", f"{version} is built without CUDA, but this machine has a GPU", TORCH_FIX)
    return _row("PyTorch", "ok", f"{version}, built without CUDA: all that a machine without a GPU needs")


def _driver_row(info: GpuInfo) -> Finding:
    if info.gpus:
        return _row("driver", "ok", f"NVIDIA {info.driver or '(version unknown)'}, {len(info.gpus)} GPU(s) usable")
    if info.driver is None and not info.on_bus:
        return _row("driver", "ok", "no NVIDIA GPU on this machine: models run on the CPU")
    text, fix = f"{info.on_bus} NVIDIA GPU(s) on the bus and no driver here", "install NVIDIA's driver"
    if info.driver is not None:
        text = f"NVIDIA {info.driver} is there, but PyTorch cannot use it"
        fix = f"install a driver for CUDA {info.cuda} or newer"
    text, fix = f"{text}: {info.cuda_error}", f"{fix}; in a container: docker run --gpus all ..."
    return _row("driver", "warning", text, TORCH_FIX if info.driver is not None and info.cuda is None else fix)


def _gpu_row(index: int, gpu: Gpu) -> Finding:
    name, capability = f"cuda:{index}", "{}.{}".format(*gpu.capability)
    text = f"{gpu.name}, {gpu.memory_bytes / 1e9:,.0f} GB, compute capability {capability}"
    if gpu.capability < MIN_CAPABILITY:
        needed = "{}.{}".format(*MIN_CAPABILITY)
        return _row(name, "warning", f"{text}: our kernels and bfloat16 need {needed}, plain PyTorch is used")
    if gpu.refusal is not None:
        return _row(name, "warning", f"{text}; without the native kernels: {gpu.refusal}", "make kernels")
    return _row(name, "ok", f"{text}, native kernels fit")


def _tool_rows(tools: "KernelTools", *, with_gpu: bool) -> Iterator[Finding]:
    """Check the kernel library and the compilers. A library that does not load is broken where a GPU would use it."""
    if tools.library_error is None:
        yield _row("kernel library", "ok", f"{tools.library}, for {', '.join(tools.archs)}")
    else:
        lost = (
            "the service falls back to Triton and PyTorch" if with_gpu else "used on GPUs alone: nothing is lost here"
        )
        status: Status = "missing" if not tools.built else "broken" if with_gpu else "warning"
        yield _row("kernel library", status, f"{tools.library_error}; {lost}", "make kernels")
    where = "" if with_gpu else "; used on GPUs alone"
    if tools.triton_error is None:
        yield _row("Triton", "ok", f"can compile its kernels{where}")
    else:
        fix = "apt install gcc python3-dev && pip install triton"
        yield _row("Triton", "missing", f"{tools.triton_error}{where}", fix)
    if tools.nvcc is not None:
        yield _row("nvcc", "ok", f"CUDA {tools.nvcc}: `make kernels` works here")
    else:
        fix = "install the CUDA toolkit (apt install cuda-toolkit), or take the image, which has the library"
        yield _row("nvcc", "missing", f"`make kernels` does not work here: {tools.nvcc_error}", fix)
    nvrtc = package_version("nvidia-cuda-nvrtc")
    if nvrtc is not None:
        yield _row("NVRTC", "ok", f"{nvrtc}, checks device code where there is no nvcc")
    else:
        text = "not there; it comes with PyTorch for CUDA, and only its tests of device code without nvcc use it"
        yield _row("NVRTC", "missing", text)


def _cuda() -> str | None:
    """Return the CUDA version that the installed torch is built for, without importing it."""
    spec = find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    return runpy.run_path(str(file)).get("cuda") if file and file.is_file() else None


def _cuda_error() -> str:
    """Return the first sentence of why torch can use no GPU; "" where it can."""
    import torch

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

    properties = torch.cuda.get_device_properties(index)
    refusal = device_kernels(torch.device("cuda", index)).refusal
    return Gpu(properties.name, (properties.major, properties.minor), properties.total_memory, refusal)


def _gpus_on_bus() -> int:
    try:
        return sum(
            (device / "vendor").read_text().strip() == _NVIDIA and (device / "class").read_text().startswith(_DISPLAY)
            for device in PCI.iterdir()
        )
    except OSError:
        return 0
