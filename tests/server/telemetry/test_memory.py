"""Who holds memory: the parts of a GPU add up to all of it, whatever NVML says or does not."""

import os
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from milkweed.server.telemetry import nvml
from milkweed.server.telemetry.memory import collect_gpu_memory, collect_process_memory, gpu_memory_kinds

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
    nvml._library.cache_clear()
    yield
    nvml._library.cache_clear()


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
def test_nvml_tells_this_process_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_gpu_that_nobody_uses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_without_its_word_there_is_one_part_less(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    kinds = gpu_kinds()
    assert kinds == {
        "torch_allocated": 10 * GIB,
        "torch_cached": 2 * GIB,
        "unattributed": 18 * GIB,
        "free": 50 * GIB,
    }
    assert sum(kinds.values()) == TOTAL


@pytest.mark.parametrize("process", [0, 11, 12, 13, 30, 99])
def test_figures_that_contradict_each_other_make_no_negative_part(process: int) -> None:
    kinds = gpu_memory_kinds(free=50, total=80, allocated=10, reserved=12, process=process)
    assert min(kinds.values()) >= 0
    assert sum(kinds.values()) == 80


def test_without_cuda_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert list(collect_gpu_memory()) == []


def test_process_memory_is_the_systems() -> None:
    ballast = b"x" * (64 << 20)
    [family] = collect_process_memory()
    kinds = {sample.labels["kind"]: sample.value for sample in family.samples}
    assert kinds["rss"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
    assert kinds["rss"] > len(ballast)
    if "pss" in kinds:
        assert 0 < kinds["uss"] <= kinds["pss"] <= 1.05 * kinds["rss"]
