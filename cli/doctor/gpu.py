"""Checks the GPUs: whether torch can use them, and whether our kernels run on them."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from .finding import Finding
from .system_info import Gpu, SystemInfo

if TYPE_CHECKING:
    from ...models.serving.fused.device_kernels import KernelTools

LEAST_CAPABILITY = (8, 0)
"""Bfloat16, the Triton kernels and the native kernels need Ampere."""

TORCH_FIX = "pip install --force-reinstall torch"

_row = partial(Finding, "GPU")


def gpu_findings(facts: SystemInfo) -> Iterator[Finding]:
    """Make a row each for PyTorch, the driver, every GPU, the kernel library, and what compiles kernels."""
    yield _torch(facts)
    yield _driver(facts)
    for index, gpu in enumerate(facts.gpus):
        yield _gpu(index, gpu)
    if facts.kernels is None:
        return  # they are used on GPUs alone
    yield _library(facts, facts.kernels)
    yield _triton(facts, facts.kernels)
    yield _nvcc(facts.kernels)
    yield _nvrtc(facts)


def _torch(facts: SystemInfo) -> Finding:
    version = facts.packages.get("torch")
    if version is None:
        text = "not installed: graphs, and programs of our CPU kernels, are served without it"
        return _row("PyTorch", "missing", text, "pip install 'milkweed[torch]'")
    if facts.cuda is not None:
        return _row("PyTorch", "ok", f"{version}, built for CUDA {facts.cuda}")
    if facts.gpus_on_bus or facts.driver is not None:
        text = f"{version} is built without CUDA, but this machine has a GPU"
        return _row("PyTorch", "warning", text, TORCH_FIX)
    return _row("PyTorch", "ok", f"{version}, built without CUDA: all that a machine without a GPU needs")


def _driver(facts: SystemInfo) -> Finding:
    if facts.gpus:
        return _row("driver", "ok", f"NVIDIA {facts.driver or '(version unknown)'}, {len(facts.gpus)} GPU(s) usable")
    if not facts.gpus_on_bus and facts.driver is None:
        return _row("driver", "ok", "no NVIDIA GPU on this machine: models run on the CPU")
    if facts.driver is None:
        text = f"{facts.gpus_on_bus} NVIDIA GPU(s) on the bus and no driver here: {facts.cuda_error}"
        return _row("driver", "warning", text, "install NVIDIA's driver; in a container: docker run --gpus all ...")
    text = f"NVIDIA {facts.driver} is there, but PyTorch cannot use it: {facts.cuda_error}"
    newer = f"install a driver for CUDA {facts.cuda} or newer; in a container: docker run --gpus all ..."
    return _row("driver", "warning", text, TORCH_FIX if facts.cuda is None else newer)


def _gpu(index: int, gpu: Gpu) -> Finding:
    name, capability = f"cuda:{index}", "{}.{}".format(*gpu.capability)
    text = f"{gpu.name}, {gpu.memory_bytes / 1e9:,.0f} GB, compute capability {capability}"
    if gpu.capability < LEAST_CAPABILITY:
        least = "{}.{}".format(*LEAST_CAPABILITY)
        return _row(name, "warning", f"{text}: our kernels and bfloat16 need {least}, plain PyTorch is used")
    if gpu.kernels is not None:
        return _row(name, "warning", f"{text}; without the native kernels: {gpu.kernels}", "make kernels")
    return _row(name, "ok", f"{text}, native kernels fit")


def _library(facts: SystemInfo, tools: "KernelTools") -> Finding:
    """Check the kernel library: one that exists but cannot be loaded counts as broken where a GPU would use it."""
    name = "kernel library"
    if tools.library_error is None:
        return _row(name, "ok", f"{tools.library}, for {', '.join(tools.archs)}")
    used = "the service falls back to Triton and PyTorch" if facts.gpus else "used on GPUs alone: nothing is lost here"
    error = tools.library_error.removesuffix(": run `make kernels`")
    if not tools.built:
        return _row(name, "missing", f"{error}; {used}", "make kernels")
    return _row(name, "broken" if facts.gpus else "warning", f"{error}; {used}", "make kernels")


def _triton(facts: SystemInfo, tools: "KernelTools") -> Finding:
    error, where = tools.triton_error, "" if facts.gpus else "; used on GPUs alone"
    if error is None:
        return _row("Triton", "ok", f"can compile its kernels{where}")
    return _row("Triton", "missing", f"{error}{where}", "apt install gcc python3-dev && pip install triton")


def _nvcc(tools: "KernelTools") -> Finding:
    if tools.nvcc is not None:
        return _row("nvcc", "ok", f"CUDA {tools.nvcc}: `make kernels` works here")
    fix = "install the CUDA toolkit (apt install cuda-toolkit), or take the image, which has the library"
    return _row("nvcc", "missing", f"`make kernels` does not work here: {tools.nvcc_error}", fix)


def _nvrtc(facts: SystemInfo) -> Finding:
    version = facts.packages.get("nvidia-cuda-nvrtc")
    if version is None:
        text = "not there; it comes with PyTorch for CUDA, and only its tests of device code without nvcc use it"
        return _row("NVRTC", "missing", text)
    return _row("NVRTC", "ok", f"{version}, checks device code where there is no nvcc")
