"""The device, number type and CPU cores that inference uses, decided once from settings and machine."""

import math
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class DeviceError(ValueError):
    """A device or number type that this machine does not have; the message is one line."""


def resolve_device(name: str) -> torch.device:
    """The device that `auto`, `cpu`, `cuda` or `cuda:N` means here.

    Raises:
        DeviceError: no such kind of device, or CUDA was asked for and is not there.
    """
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"device {name!r}: must be auto, cpu or cuda[:N]") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = device.index or 0
        if index >= count:
            raise DeviceError(f"device {name}: this machine has {count} CUDA devices")
        return torch.device("cuda", index)
    return device


def resolve_devices(names: str) -> tuple[torch.device, ...]:
    """The devices that a list of names means here; `cuda:all` is every GPU that is visible.

    Raises:
        DeviceError: one of them is not there.
    """
    if names == "cuda:all":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise DeviceError("device cuda:all: this machine has 0 CUDA devices")
        names = ",".join(f"cuda:{index}" for index in range(count))
    return tuple(resolve_device(name) for name in names.split(","))


def device_names(devices: Sequence[torch.device]) -> tuple[str, ...]:
    """What each engine's device is called: several on one CPU are told apart as cpu:0, cpu:1."""
    if len(devices) == 1:
        return (str(devices[0]),)
    return tuple(f"cpu:{place}" if device.type == "cpu" else str(device) for place, device in enumerate(devices))


def use_device(device: torch.device) -> None:
    """Make a CUDA device the calling thread's current one, which libraries that are told none launch on."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def resolve_dtypes(name: str, device: torch.device) -> tuple[torch.dtype, ...]:
    """The number types that `float32`, `bfloat16` or `auto` may mean on `device`, the preferred one first.

    On a GPU `auto` means bfloat16, or float16 where it does not compute in that: the fused kernels take two-byte
    numbers alone. On a CPU that computes in bfloat16 it means that, or float32 for a model that is faster in it or
    misses its golden answers in bfloat16.
    """
    if name != "auto":
        return (getattr(torch, name),)
    if device.type == "cuda":
        return (torch.bfloat16 if computes_in_bfloat16(device) else torch.float16,)
    return (torch.bfloat16, torch.float32) if computes_in_bfloat16(device) else (torch.float32,)


def dtype_name(dtype: torch.dtype) -> str:
    """What a number type is called in settings and answers."""
    return str(dtype).removeprefix("torch.")


def autocast_dtype(device: torch.device) -> str:
    """What training is worth casting to on `device`: `bfloat16` where it computes in that, else `none`."""
    return "bfloat16" if computes_in_bfloat16(device) else "none"


def computes_in_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16: a GPU since Ampere, a CPU with AVX-512 BF16 or AMX."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def usable_cores() -> int:
    """Cores this process may use: its affinity, bounded by the container's CPU quota; at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return max(1, cores)  # no cgroup v2 here: affinity is all there is to know
    return max(1, cores)


def processor_name() -> str:
    """The processor's name as the system tells it: what figures of speed belong to."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
