"""Checks the GPUs: whether torch can use them, and whether our kernels run on them."""

import runpy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ...inference.backend import has_torch
from ...kernels.installation import install_command
from ...server.telemetry.nvml import driver_version
from .finding import Finding, Status, row
from .packages import package_version

PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY = "0x10de", "0x03"

MIN_CAPABILITY = (8, 0)
"""Bfloat16, the Triton kernels and the native kernels need Ampere."""

TORCH_FIX = "pip install --force-reinstall torch"

_row = partial(row, "GPU")


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
        with_torch: whether torch was asked: not where there is no GPU that it could use.
    """

    cuda: str | None = None
    cuda_error: str = ""
    driver: str | None = None
    on_bus: int = 0
    gpus: tuple[Gpu, ...] = ()
    with_torch: bool = False


def gpu_info() -> GpuInfo:
    """Ask all of them; this starts no GPU work."""
    cuda, driver, on_bus = _cuda(), driver_version(), _gpus_on_bus()
    if not has_torch() or (driver is None and not on_bus):
        return GpuInfo(cuda=cuda, cuda_error="PyTorch is not installed", driver=driver, on_bus=on_bus)
    import torch

    from ...models.serving.fused.device_kernels import device_kernels

    error, gpus = _cuda_error(), []
    for index in range(0 if error else torch.cuda.device_count()):
        device, refusal = torch.cuda.get_device_properties(index), device_kernels(torch.device("cuda", index)).refusal
        gpus.append(Gpu(device.name, (device.major, device.minor), device.total_memory, refusal))
    return GpuInfo(cuda=cuda, cuda_error=error, driver=driver, on_bus=on_bus, gpus=tuple(gpus), with_torch=True)


def gpu_findings(info: GpuInfo) -> Iterator[Finding]:
    """Make a row each for PyTorch, the driver, every GPU, the kernel library, and what compiles kernels."""
    yield _torch_row(info)
    yield _driver_row(info)
    for index, gpu in enumerate(info.gpus):
        yield _gpu_row(index, gpu)
    if info.with_torch:
        yield _library_row(with_gpu=bool(info.gpus))
        yield from _compiler_rows("" if info.gpus else "; used on GPUs alone")


def _torch_row(info: GpuInfo) -> Finding:
    version = package_version("torch")
    if version is None:
        lost = "not installed: graphs, and programs of our CPU kernels, are served without it"
        return _row("PyTorch", "", lost, install_command("torch"), "missing")
    if info.cuda is not None:
        return _row("PyTorch", f"{version}, built for CUDA {info.cuda}")
    has_gpu = info.on_bus or info.driver is not None
    fault = f"{version} is built without CUDA, but this machine has a GPU" if has_gpu else None
    return _row("PyTorch", f"{version}, built without CUDA: all that a machine without a GPU needs", fault, TORCH_FIX)


def _driver_row(info: GpuInfo) -> Finding:
    if info.gpus:
        return _row("driver", f"NVIDIA {info.driver or '(version unknown)'}, {len(info.gpus)} GPU(s) usable")
    if info.driver is None and not info.on_bus:
        return _row("driver", "no NVIDIA GPU on this machine: models run on the CPU")
    fault, driver = f"{info.on_bus} NVIDIA GPU(s) on the bus and no driver here", "NVIDIA's driver"
    if info.driver is not None:
        fault = f"NVIDIA {info.driver} is there, but PyTorch cannot use it"
        driver = f"a driver for CUDA {info.cuda} or newer"
    fix = f"install {driver}; in a container: docker run --gpus all ..."
    without_cuda = info.driver is not None and info.cuda is None
    return _row("driver", "", f"{fault}: {info.cuda_error}", TORCH_FIX if without_cuda else fix)


def _gpu_row(index: int, gpu: Gpu) -> Finding:
    capability, needed = ("{}.{}".format(*version) for version in (gpu.capability, MIN_CAPABILITY))
    text = f"{gpu.name}, {gpu.memory_bytes / 1e9:,.0f} GB, compute capability {capability}"
    if gpu.capability < MIN_CAPABILITY:
        return _row(f"cuda:{index}", "", f"{text}: our kernels and bfloat16 need {needed}, plain PyTorch is used")
    fault = None if gpu.refusal is None else f"{text}; without the native kernels: {gpu.refusal}"
    return _row(f"cuda:{index}", f"{text}, native kernels fit", fault, install_command("kernels"))


def _library_row(*, with_gpu: bool) -> Finding:
    """Check the kernel library: one that does not load is broken where a GPU would use it."""
    from ...kernels.native.library import LibraryError, library_path, load_library

    path, text, fault = library_path(), "", None
    lost = "the service falls back to Triton and PyTorch" if with_gpu else "used on GPUs alone: nothing is lost here"
    try:
        text = f"{path}, for {', '.join(load_library(path).archs)}"
    except LibraryError as error:
        fault = f"{error}; {lost}"
    status: Status = "missing" if not path.is_file() else "broken" if with_gpu else "warning"
    return _row("kernel library", text, fault, install_command("kernels"), status)


def _compiler_rows(where: str) -> Iterator[Finding]:
    """Check what compiles kernels."""
    from ...kernels.native.toolchain import BuildError, find_toolchain
    from ...kernels.triton.linear import missing_for_triton

    missing, text, fault, build = missing_for_triton(), "", None, install_command("kernels")
    fix = "apt install gcc python3-dev && pip install triton"
    yield _row("Triton", f"can compile its kernels{where}", missing and f"{missing}{where}", fix, "missing")
    try:
        text = f"CUDA {find_toolchain().version}: `{build}` works here"
    except BuildError as error:
        fault = f"`{build}` does not work here: {str(error).splitlines()[0]}"
    fix = "install the CUDA toolkit (apt install cuda-toolkit), or take the image, which has the library"
    yield _row("nvcc", text, fault, fix, "missing")
    nvrtc = package_version("nvidia-cuda-nvrtc")
    fault = "not there; it comes with PyTorch for CUDA, and only its tests of device code without nvcc use it"
    text = f"{nvrtc}, checks device code where there is no nvcc"
    yield _row("NVRTC", text, None if nvrtc else fault, status="missing")


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


def _gpus_on_bus() -> int:
    try:
        return sum(
            (device / "vendor").read_text().strip() == _NVIDIA and (device / "class").read_text().startswith(_DISPLAY)
            for device in PCI.iterdir()
        )
    except OSError:
        return 0
