"""Tests who holds memory: the parts of a GPU add up to all of it, whatever NVML says or does not."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from milkweed.inference.forward import LanePlan
from milkweed.inference.program import session_forward
from milkweed.models.programs.session import kernels_refusal
from milkweed.server.telemetry import nvml
from milkweed.server.telemetry.system_metrics import (
    ContainerMemory,
    StageCpu,
    collect_container_memory,
    collect_gpu_memory,
    collect_process_memory,
    container_memory,
    gpu_memory_kinds,
    native_thread_seconds,
)

from ...inference.system_tree import system_tree
from ...kernels.cpu.vit_programs import made

GIB = 1 << 30
TOTAL, FREE, RESERVED, ALLOCATED = 80 * GIB, 50 * GIB, 12 * GIB, 10 * GIB
UUID = "8a3b0f1c-0000-1111-2222-333344445555"


class FakeNvml(ModuleType):
    """pynvml with one GPU, on which this process and another one run."""

    class NVMLError(Exception):
        pass

    def __init__(self, used: int | None = 14 * GIB, *, pid: int | None = None, fails: str = "") -> None:
        super().__init__("pynvml")
        self.used, self.pid, self.fails = used, os.getpid() if pid is None else pid, fails
        self.asked: list[bytes] = []

    def nvmlInit(self) -> None:
        self._answer("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:
        self.asked.append(uuid)
        self._answer("handle")
        return "handle"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        self._answer("processes")
        other = SimpleNamespace(pid=self.pid + 1, usedGpuMemory=9 * GIB)
        return [other, SimpleNamespace(pid=self.pid, usedGpuMemory=self.used)]

    def _answer(self, what: str) -> None:
        if self.fails == what:
            raise self.NVMLError(what)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    nvml.library.cache_clear()
    yield
    nvml.library.cache_clear()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "mem_get_info": (FREE, TOTAL),
        "memory_allocated": ALLOCATED,
        "memory_reserved": RESERVED,
        "max_memory_allocated": 11 * GIB,
        "get_device_properties": SimpleNamespace(uuid=UUID),
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)


def gpu_kinds() -> dict[str, float]:
    family, peak = collect_gpu_memory()
    assert (family.name, peak.name) == ("milkweed_gpu_memory_bytes", "milkweed_gpu_memory_peak_allocated_bytes")
    assert {sample.labels["device"] for sample in (*family.samples, *peak.samples)} == {"cuda:0"}
    assert [sample.value for sample in peak.samples] == [11 * GIB]
    return {sample.labels["kind"]: sample.value for sample in family.samples}


@pytest.mark.usefixtures("gpu")
def test_gpu_memory_is_divided_with_nvml_between_this_process_and_others(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    kinds = gpu_kinds()
    assert kinds == {
        "torch_allocated": 10 * GIB,
        "torch_cached": 2 * GIB,
        "unaccounted": 2 * GIB,
        "others": 16 * GIB,
        "free": 50 * GIB,
    }
    assert sum(kinds.values()) == TOTAL
    assert fake.asked == [b"GPU-" + UUID.encode()]


@pytest.mark.usefixtures("gpu")
def test_an_unused_gpu_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: RESERVED if index == 0 else 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: asked.append(index) or (FREE, TOTAL))
    assert sum(gpu_kinds().values()) == TOTAL
    assert asked == [0]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "library",
    [
        None,
        *(FakeNvml(fails=what) for what in ("init", "handle", "processes")),
        FakeNvml(used=None),
        FakeNvml(pid=os.getpid() + 7),
    ],
    ids=["absent", "no driver", "no such device", "not allowed", "not told", "other numbers"],
)
def test_without_nvml_other_processes_are_not_told_apart(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    kinds = gpu_kinds()
    assert kinds == {"torch_allocated": 10 * GIB, "torch_cached": 2 * GIB, "unattributed": 18 * GIB, "free": 50 * GIB}
    assert sum(kinds.values()) == TOTAL


@pytest.mark.parametrize("process", [0, 11, 12, 13, 30, 99])
def test_figures_that_contradict_each_other_make_no_negative_part(process: int) -> None:
    kinds = gpu_memory_kinds(free=50, total=80, allocated=10, reserved=12, process=process)
    assert min(kinds.values()) >= 0
    assert sum(kinds.values()) == 80


def test_without_cuda_there_is_no_gpu_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert list(collect_gpu_memory()) == []


def test_process_memory_is_what_the_system_tells() -> None:
    ballast = b"x" * (64 << 20)
    [family] = collect_process_memory()
    kinds = {sample.labels["kind"]: sample.value for sample in family.samples}
    assert kinds["rss"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
    assert kinds["rss"] > len(ballast)
    if "pss" in kinds:
        assert 0 < kinds["uss"] <= kinds["pss"] <= 1.05 * kinds["rss"]


def cgroup(root: Path, limit: str = "2147483648", used: str = "1000000000", inactive: str = "300000000") -> Path:
    stat = f"anon 600000000\nfile 400000000\ninactive_file {inactive}\nactive_file 1"
    return system_tree(root, "0::/", "/", {"memory.max": limit, "memory.current": used, "memory.stat": stat})


def test_the_least_memory_limit_of_all_groups_counts(tmp_path: Path) -> None:
    files = {
        "memory.max": "max",
        "memory.current": "9000",
        "a/memory.max": "1000",
        "a/memory.current": "500",
        "a/memory.stat": "inactive_file 100",
        "a/b/memory.max": "2000",
        "a/b/memory.current": "400",
    }
    assert container_memory(system_tree(tmp_path, "0::/a/b", "/", files)) == ContainerMemory(400, 1000)


@pytest.mark.parametrize(("limit", "found"), [("1000", ContainerMemory(300, 1000)), ("9223372036854771712", None)])
def test_memory_limits_of_cgroup_v1(limit: str, found: ContainerMemory | None, tmp_path: Path) -> None:
    names = {"limit_in_bytes": limit, "usage_in_bytes": "500", "stat": "inactive_file 7\ntotal_inactive_file 200"}
    files = {f"memory.{name}": text for name, text in names.items()}
    root = system_tree(tmp_path, "5:cpu:/x\n4:memory:/docker/c1", "/docker/c1", files, "cgroup cgroup rw,memory")
    assert container_memory(root) == found


def test_container_memory_leaves_out_inactive_files(tmp_path: Path) -> None:
    assert container_memory(cgroup(tmp_path)) == ContainerMemory(700_000_000, 2 << 30)
    # the two are read one after the other
    assert container_memory(cgroup(tmp_path, used="5", inactive="7")) == ContainerMemory(0, 2 << 30)


def test_container_memory_and_its_limit_are_metrics(tmp_path: Path) -> None:
    found = {family.name: family.samples[0].value for family in collect_container_memory(cgroup(tmp_path))}
    assert found == {
        "milkweed_container_memory_working_set_bytes": 700_000_000,
        "milkweed_container_memory_limit_bytes": 2 << 30,
    }


@pytest.mark.parametrize(("limit", "used"), [("max", "1"), ("many", "1"), ("1000", ""), ("", "1")])
def test_container_memory_without_a_limit_is_none(tmp_path: Path, limit: str, used: str) -> None:
    assert container_memory(cgroup(tmp_path, limit, used)) is None
    assert list(collect_container_memory(tmp_path)) == []


def test_container_memory_without_cgroups_is_none(tmp_path: Path) -> None:
    assert container_memory(tmp_path / "none") is None


def test_cpu_time_of_threads_that_help_counts_once() -> None:
    """Threads that help our kernels are not Python's: what the system says of them is all that is counted."""
    if (refusal := kernels_refusal()) is not None:
        pytest.skip(refusal)
    forward = session_forward(made(size=112, width=192, head_dim=64, hidden=768), LanePlan(1, 2, 1), 112)
    stages, images = StageCpu(("forward",)), forward.blank(1)
    before, started = native_thread_seconds(), time.process_time()
    while time.process_time() - started < 0.5 or native_thread_seconds() - before < 0.1:
        stages.add("forward", forward.run(images).cpu_seconds)
    (metric,) = stages.collect()
    spent = time.process_time() - started
    assert 0.5 * spent < metric.samples[0].value < 1.02 * spent
