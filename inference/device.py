"""The device, number type and CPU cores that inference uses, decided once from settings and machine."""

import ctypes
import math
import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_CPU_INFO = Path("/proc/cpuinfo")
_ROOT, _ESCAPED = Path("/"), re.compile(r"\\([0-7]{3})")
_QUOTA = re.compile(r"([0-9]{1,18})\s+([1-9][0-9]{0,17})\s*")  # and its period; -1 or "max" is none
_GROUP = re.compile(r"^\d+:([^:\n]*):(/.*)$", re.MULTILINE)
_CGROUP_MOUNT = re.compile(r"^\S+ \S+ \S+ (/\S*) (/\S*) .* - (cgroup2?) \S+ (\S+)$", re.MULTILINE)

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
"""The bytes of a number of each type."""

BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Features of CPUs that compute in bfloat16, as Linux names them; the last one is ARM's."""


class DeviceError(ValueError):
    """A device or number type that this machine does not have; the message is one line."""


@dataclass(frozen=True)
class Device:
    """A device as settings name it: `cpu` or `cuda:N`."""

    type: str = "cpu"
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    @property
    def for_torch(self) -> "torch.device":
        """The same device for torch."""
        import torch

        return torch.device(str(self))


CPU = Device()


def resolve_device(name: str) -> Device:
    """The device that `auto`, `cpu`, `cuda` or `cuda:N` means here.

    Raises:
        DeviceError: no such kind of device, or CUDA was asked for and is not there.
    """
    if name == "auto":
        return Device("cuda", 0) if gpu_count() else CPU
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or not (number.isdecimal() or name == kind):
        raise DeviceError(f"device {name!r}: must be auto, cpu or cuda[:N]")
    if kind == "cpu":
        return CPU
    index, count = int(number or 0), gpu_count()
    if index >= count:
        raise DeviceError(f"device {name}: this machine has {count} CUDA devices")
    return Device("cuda", index)


def gpu_count() -> int:
    """The GPUs that torch can use. Where there is no driver, torch is not imported to say so."""
    if sys.modules.get("torch") is None and (find_spec("torch") is None or not _has_driver()):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _has_driver() -> bool:
    """Whether NVIDIA's driver can be loaded, as torch would do it."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def resolve_devices(names: str) -> tuple[Device, ...]:
    """The devices that a list of names means here; `cuda:all` is every GPU that is visible.

    Raises:
        DeviceError: one of them is not there.
    """
    if names == "cuda:all":
        count = gpu_count()
        if not count:
            raise DeviceError("device cuda:all: this machine has 0 CUDA devices")
        names = ",".join(f"cuda:{index}" for index in range(count))
    return tuple(resolve_device(name) for name in names.split(","))


def device_names(devices: Sequence[Device]) -> tuple[str, ...]:
    """What each engine's device is called: several on one CPU are told apart as cpu:0, cpu:1."""
    if len(devices) == 1:
        return (str(devices[0]),)
    return tuple(f"cpu:{place}" if device.type == "cpu" else str(device) for place, device in enumerate(devices))


def use_device(device: "Device | torch.device") -> None:
    """Make a CUDA device the calling thread's current one, which libraries that are told none launch on."""
    if device.type == "cuda":
        import torch

        torch.cuda.set_device(str(device))


def resolve_dtypes(name: str, device: Device) -> tuple[str, ...]:
    """The number types that `float32`, `bfloat16` or `auto` may mean on `device`, the preferred one first.

    On a GPU `auto` means bfloat16, or float16 where it does not compute in that: the fused kernels take two-byte
    numbers alone. On a CPU that computes in bfloat16 it means that, or float32 for a model that is faster in it or
    misses its golden answers in bfloat16.
    """
    if name != "auto":
        return (name,)
    if device.type == "cuda":
        return ("bfloat16" if computes_in_bfloat16(device) else "float16",)
    return ("bfloat16", "float32") if computes_in_bfloat16(device) else ("float32",)


def autocast_dtype(device: "Device | torch.device") -> str:
    """What training is worth casting to on `device`: `bfloat16` where it computes in that, else `none`."""
    return "bfloat16" if computes_in_bfloat16(device) else "none"


def computes_in_bfloat16(device: "Device | torch.device") -> bool:
    """Whether the device has instructions for bfloat16: a GPU since Ampere, a CPU with AVX-512 BF16 or AMX."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_capability(str(device)) >= (8, 0)
    return not BFLOAT16_FLAGS.isdisjoint(cpu_flags())


def cpu_flags() -> frozenset[str]:
    """The CPU's features as Linux names them; none where it does not tell."""
    lines = read_text(_CPU_INFO).splitlines()
    return frozenset(next((line for line in lines if line.startswith(("flags", "Features"))), "").split()[2:])


def usable_cores(root: Path = _ROOT) -> int:
    """Cores this process may use: its affinity, bounded by the least CPU quota of its control groups; at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    for group in control_groups(root):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            if quota := _QUOTA.fullmatch("".join(read_text(group / name) for name in names)):
                cores = min(cores, math.ceil(int(quota[1]) / int(quota[2])))
    return max(1, cores)


def control_groups(root: Path = _ROOT) -> list[Path]:
    """The folders of the groups that this process is in and of all above them, of cgroup v1 and v2, as far as mounted.

    Args:
        root: the folder that has `proc` and what is mounted.
    """
    groups, memberships = [], _GROUP.findall(read_text(root / "proc/self/cgroup"))
    for top, place, version, options in _CGROUP_MOUNT.findall(read_text(root / "proc/self/mountinfo")):
        top, place = (_ESCAPED.sub(lambda code: chr(int(code[1], 8)), path) for path in (top, place))
        names = options.split(",") if version == "cgroup" else [""]  # version 2 has all controllers, and names none
        for controllers, path in memberships:
            if not {*controllers.split(",")}.isdisjoint(names):
                # Where a namespace hides the way from the mount to the own group, the mount is all there is to see.
                visible = Path(path).is_relative_to(top) and ".." not in path
                below = Path(path).relative_to(top) if visible else Path()
                group = root / place.lstrip("/") / below
                groups += [group, *group.parents][: len(below.parts) + 1]
    return groups


def read_text(file: Path) -> str:
    """The text of a system file; "" where it cannot be read."""
    try:
        return file.read_text(errors="replace")
    except (OSError, ValueError):  # no such file, or a path that can be none
        return ""


def processor_name() -> str:
    """The processor's name as the system tells it: what figures of speed belong to."""
    lines = read_text(_CPU_INFO).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def trim_heap() -> None:
    """Return freed memory to the system where the C library would keep it for itself."""
    _call_libc("malloc_trim", 0)


def keep_freed_memory(*, all_blocks: bool = False) -> None:
    """Have the C library keep freed memory for itself: the kernel clears every page that it gives out again.

    By default glibc returns blocks above the largest freed so far, up to 32 MiB; then those above 32 MiB alone.

    Args:
        all_blocks: larger ones too, for a process that trains and takes as much with every step.
    """
    mmap_max, mmap_threshold, trim_threshold = -4, -3, -1  # of malloc.h
    limits = {mmap_max: 0, trim_threshold: 2**31 - 1} if all_blocks else {mmap_threshold: 2**25, trim_threshold: 2**27}
    for parameter, value in limits.items():
        _call_libc("mallopt", parameter, value)


def _call_libc(function: str, *arguments: int) -> None:
    try:
        getattr(ctypes.CDLL("libc.so.6"), function)(*arguments)
    except (OSError, AttributeError):
        return  # another C library, which has no such function


# Unless it is strict, Intel's MKL rounds a row of a small product, as in a classifier of three classes, by its place in
# the batch: an image's last bits would depend on its neighbours. MKL reads the variable at a process' first product.
if "Intel" in processor_name():
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
