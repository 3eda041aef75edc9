"""Device, number type and cores: what is asked for, what is there, and what the container allows."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from milkweed.inference.device import (
    CPU,
    Device,
    DeviceError,
    device_names,
    processor_name,
    resolve_device,
    resolve_devices,
    resolve_dtypes,
    usable_cores,
)
from milkweed.inference.options import InferenceOptions
from milkweed.server.config.inference_options import inference_options
from milkweed.server.config.settings import Settings
from milkweed.server.telemetry.system_metrics import container_memory

from .system_tree import system_tree


def test_auto_is_the_cpu_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == CPU
    with pytest.raises(DeviceError, match="device cuda:1: this machine has 0 CUDA devices"):
        resolve_device("cuda:1")


def test_auto_is_the_first_gpu_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == Device("cuda", 0)
    assert resolve_device("cuda:1") == Device("cuda", 1)
    with pytest.raises(DeviceError, match="cuda:2: this machine has 2"):
        resolve_device("cuda:2")


def test_several_devices_and_what_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = resolve_devices("cpu,cpu")
    assert cpus == (CPU,) * 2
    assert device_names(cpus) == ("cpu:0", "cpu:1")
    assert device_names(resolve_devices("cpu")) == ("cpu",)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert device_names(resolve_devices("cuda:2,cuda:0")) == ("cuda:2", "cuda:0")
    assert device_names(resolve_devices("cuda:all")) == ("cuda:0", "cuda:1", "cuda:2")
    assert device_names(resolve_devices("cuda")) == device_names(resolve_devices("auto")) == ("cuda:0",)
    with pytest.raises(DeviceError, match="cuda:3: this machine has 3"):
        resolve_devices("cuda:0,cuda:3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="device cuda:all: this machine has 0 CUDA devices"):
        resolve_devices("cuda:all")


def test_dtype_on_a_cpu_is_bfloat16_before_float32_where_it_computes_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = CPU
    assert resolve_dtypes("float32", cpu) == ("float32",)
    assert resolve_dtypes("bfloat16", cpu) == ("bfloat16",)
    for able, expected in ((True, ("bfloat16", "float32")), (False, ("float32",))):
        monkeypatch.setattr("milkweed.inference.device.computes_in_bfloat16", lambda device, able=able: able)
        assert resolve_dtypes("auto", cpu) == expected


def test_dtype_is_two_bytes_on_a_gpu_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device("cuda", 0)
    for capability, expected in (((7, 5), "float16"), ((8, 0), "bfloat16"), ((12, 0), "bfloat16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        assert resolve_dtypes("auto", gpu) == (expected,)
        assert resolve_dtypes("float32", gpu) == ("float32",)
        assert resolve_dtypes("bfloat16", gpu) == ("bfloat16",)


def test_every_way_to_open_a_model_takes_the_dtype_of_its_device() -> None:
    assert Settings().dtype == inference_options(Settings()).dtype == InferenceOptions().dtype == "auto"


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("10000 100000", 1), ("1600000 100000", 8)],
)
def test_container_quota_bounds_the_cores(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert usable_cores(tmp_path) == 8
    assert usable_cores(system_tree(tmp_path, "0::/", "/", {"cpu.max": quota})) == cores


V1 = "cgroup cgroup rw,cpu,cpuacct"
V1_GROUPS = "12:memory:/a/b\n4:cpuacct,cpu:{}\n1:name=systemd:/user.slice\n0::/user.slice"
LAYOUTS = {  # /proc/self/cgroup, the mount's root, its file system; files below the mount; cores
    "v2, the container's own namespace": ("0::/", "/", "", {"cpu.max": "300000 100000"}, 3),
    "v2, CPUQuota= of a service": ("0::/system.slice/a.service", "/", "", {"system.slice/a.service/cpu.max": "2 1"}, 2),
    "v2, a slice above the service": ("0::/my.slice/a.service", "/", "", {"my.slice/cpu.max": "300000 100000"}, 3),
    "v2, the least of all": (
        "0::/a/b/c",
        "/",
        "",
        {"a/cpu.max": "5 1", "a/b/cpu.max": "2 1", "a/b/c/cpu.max": "max 1", "cpu.max": "7 1", "z/cpu.max": "1 1"},
        2,
    ),
    "v2, the host's namespace": ("0::/kubepods/pod1/c1", "/kubepods/pod1/c1", "", {"cpu.max": "400000 100000"}, 4),
    "v2, moved out of its namespace": ("0::/../other", "/", "", {"cpu.max": "3 1", "other/cpu.max": "1 1"}, 3),
    "v2, mounted from far below": ("0::/a", "/../../b", "", {"cpu.max": "3 1"}, 3),
    "v1, the root": (V1_GROUPS.format("/"), "/", V1, {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, 8),
    "v1": (V1_GROUPS.format("/"), "/", V1, {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}, 1),
    "v1, nested": (
        V1_GROUPS.format("/a/b"),
        "/",
        V1,
        {"a/cpu.cfs_quota_us": "250000", "a/cpu.cfs_period_us": "100000", "a/b/cpu.cfs_quota_us": "-1"},
        3,
    ),
    "v1, Docker's mount of its own group": (
        V1_GROUPS.format("/docker/ab\\x2dcd"),
        "/docker/ab\\134x2dcd",
        V1,
        {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"},
        2,
    ),
    "another controller's mount": (V1_GROUPS.format("/"), "/", "cgroup cgroup rw,pids", {"cpu.max": "1 1"}, 8),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_least_quota_of_all_groups_counts_in_each_layout(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    group, top, kind, files, cores = LAYOUTS[name]
    assert usable_cores(system_tree(tmp_path, group, top, files, kind or "cgroup2 cgroup2 rw")) == cores


@pytest.mark.parametrize(
    ("group", "top", "quota"),
    [
        ("", "/", "1 1"),
        ("0:", "/", "1 1"),
        ("nonsense\n::\n:::::\n0::relative", "/", "1 1"),
        ("0::/", "relative", "1 1"),
        ("0::/a\0b\xff", "/", "9 1"),
        ("0::/", "/", ""),
        ("0::/", "/", "100 0"),
        ("0::/", "/", "1" * 5000 + " 1"),
        ("0::/", "/", "\u0663 1"),
        ("0::/", "/", "many 5 6"),
        ("0::/" + "a" * 5000, "/", "9 1"),
    ],
)
def test_files_that_are_broken_limit_nothing(
    group: str, top: str, quota: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    root = system_tree(tmp_path, group, top, {"cpu.max": quota})
    assert usable_cores(root) == 8
    assert container_memory(root) is None
    for name in ("cgroup", "mountinfo"):
        (root / "proc/self" / name).write_bytes(b"\xff\0 - cgroup2\n" * 100)
        assert (usable_cores(root), container_memory(root)) == (8, None)


COUNTS_PAGE_FAULTS = """
import ctypes, resource
from milkweed.inference.device import keep_freed_memory
libc, size, all_blocks = ctypes.CDLL("libc.so.6"), {size}, {all_blocks}
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(page_faults(), page_faults())
keep_freed_memory(all_blocks=all_blocks)
print(page_faults(), page_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has settings of its own")
@pytest.mark.parametrize(("size", "all_blocks"), [(16 << 20, False), (64 << 20, True)])
def test_kept_memory_is_allocated_again_without_page_faults(size: int, all_blocks: bool) -> None:
    script = COUNTS_PAGE_FAULTS.format(size=size, all_blocks=all_blocks)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    _, by_default, _, with_kept_memory = map(int, ran.stdout.split())
    assert by_default > 10 * max(with_kept_memory, 1)


def test_mkl_is_strict_on_intels_processors_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of a product must have the same bits in every place of a batch."""
    monkeypatch.delenv("MKL_CBWR", raising=False)
    script = "import os; import milkweed.inference.device; print(os.environ.get('MKL_CBWR', ''))"

    def setting() -> str:
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()

    assert setting() == ("AUTO,STRICT" if "Intel" in processor_name() else "")
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    assert setting() == "AVX2"
