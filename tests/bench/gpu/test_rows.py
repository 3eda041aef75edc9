"""Rows are right before they are timed; what a bare machine lacks is named."""

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from milkweed.bench.gpu import device
from milkweed.bench.gpu.device import REPEATS, Ceilings, library, sm_clock, time_calls
from milkweed.bench.gpu.journal import Absent, read, rows
from milkweed.bench.gpu.measure import Bench, Candidate, Work, measure
from milkweed.bench.gpu.plan import Task, steps
from milkweed.bench.gpu.rows import best_plan
from milkweed.kernels.impls.all import all_impls
from milkweed.kernels.native.library import NativeStatus
from milkweed.kernels.tuning.report import Row

from ...support.fake_cuda import FakeCuda
from ...support.waiting import HANG_SECONDS

CPU = torch.device("cpu")
WORK = Work(1.0, 1.0)


def bench(**more: Any) -> Bench:
    return Bench(CPU, torch.bfloat16, 4, all_impls(), Ceilings(1e12, 1e14), **more)


# Everything that a machine with torch, Triton and nvcc alone may lack.
BARE = """
import sys
MISSING = ("fastapi", "pydantic", "simplejpeg", "timm", "rich", "matplotlib")

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from milkweed.bench.gpu import driver
from milkweed.bench.gpu.plan import SECTIONS, Task, steps
from milkweed.bench.gpu.step import attempt

task = Task(sys.argv[1], dry_run=True, sections=SECTIONS)
for unit in (unit for step in steps(task) for unit in step.units):
    if not unit.endswith("2"):
        attempt(task, unit)
"""


@pytest.mark.slow
def test_on_a_bare_machine_a_dry_run_walks_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "day.jsonl"
    done = subprocess.run([sys.executable, "-c", BARE, str(out)], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    records = read(out)
    timed = {(row["section"], row["candidate"]) for row in rows(records) if row.get("us")}
    native = {("mlp", "native_mlp"), ("mlp", "triton"), ("attention", "native_attention:0")}
    cells = {("performer", "native_performer"), ("branch", "native_branch:0")}
    peers = {("mlp", "dense"), ("mlp", "dense eager"), ("mlp", "Monarch bmm eager"), ("attention", "SDPA flash")}
    in_8_bits = {("quantized", "int8, triton_quantized:0"), ("quantized", "fp8, cuBLASLt"), ("merge", "triton_merge:0")}
    assert native | cells | peers | in_8_bits | {("mlp", "tuned")} <= timed
    assert not [record for record in records if record.get("passed") is False]
    ended = {record["unit"]: record for record in records if record["kind"] == "end"}
    without_timm = ended["forward/deit_tiny_patch16_224/1/r1"]
    assert without_timm["state"] == "absent"
    assert "needs the package timm" in without_timm["why"]
    for unit in ("served/r1", "images/stream order/dali exact"):
        assert ended[unit]["why"] == "No module named 'simplejpeg'"
    assert {end["state"] for unit, end in ended.items() if not unit.startswith(("forward", "levers", "race"))} <= {
        "complete",
        "absent",  # an operator that this build does not have
    }
    units = [unit for step in steps(Task("", dry_run=True)) for unit in step.units]
    assert {unit for unit in units if not unit.endswith("2")} <= set(ended)


def test_wrong_and_failing_candidates_are_rows_without_a_time() -> None:
    def fails(x: Tensor) -> Tensor:
        raise RuntimeError("too large a tile")

    candidates = [
        Candidate("right", True, lambda x: x.float().mul(2).to(x.dtype), Work(4e9, 2e6)),
        Candidate("wrong", True, lambda x: x * 3, WORK),
        Candidate("other truth", True, lambda x: x * 3, WORK, truth=lambda x: x.double() * 3),
        Candidate("fails", False, fails, WORK),
        Candidate("absent", False, "no nvcc", WORK),
    ]
    x = torch.randn(8, 8).to(torch.bfloat16)
    rows = measure(("mlp", "x", 1), x, lambda x: x.double() * 2, candidates, bench())
    assert (rows[0]["floor_us"], rows[0]["flops"], rows[0]["what"], rows[0]["batch"]) == (40.0, 4e9, "x", 1)
    notes = {row["candidate"]: (row["us"] is not None, row["passed"], row["note"]) for row in rows}
    assert notes["right"] == (True, True, "")
    assert (notes["wrong"][:2], "wrong, not timed" in notes["wrong"][2]) == ((False, False), True)
    assert notes["other truth"][:2] == (True, True)
    assert notes["fails"] == (False, None, "RuntimeError: too large a tile")
    assert notes["absent"] == (False, None, "no nvcc")


def test_ceilings_give_the_larger_of_two_floors_and_none_where_they_were_not_measured() -> None:
    assert Ceilings(1e12, 1e15).floor_us((1e9, 1e7)) == 10.0
    assert Ceilings().floor_us((1e9, 1e6)) == 0.0


def test_a_family_runs_the_mlp_in_one_launch_or_two_whichever_is_faster() -> None:
    whole, fc1, fc2 = (Row(span, "", f"f:{n}", seconds=1.0) for n, span in enumerate(((0, 3), (0, 2), (2, 3))))
    alone = Row((0, 1), "", "f:3", seconds=0.1)  # without its GELU
    assert str(best_plan([whole, fc1, fc2, alone])) == "0b00 f:0"
    faster = [Row((0, 2), "", "f:4", seconds=0.5), Row((2, 3), "", "f:5", seconds=0.4)]
    assert str(best_plan([whole, fc1, fc2, alone, *faster])) == "0b10 f:4 | f:5"
    assert best_plan([fc1, Row((2, 3), "", "f:6", refused="too wide")]) == "too wide"
    assert best_plan([]) is None


class Nvml:
    """NVML with one device at 1755 MHz."""

    def __init__(self, *, fails: str = "") -> None:
        self.fails = fails

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == "nvmlDeviceGetHandleByUUID":
                assert arguments[0] == b"GPU-1"
            if name == "nvmlDeviceGetClockInfo":
                assert arguments[1] == 1  # of the multiprocessors
                ctypes.cast(arguments[2], ctypes.POINTER(ctypes.c_uint))[0] = 1755
            return int(name == self.fails)

        return call


def test_the_clock_is_that_of_the_multiprocessors_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=1))
    assert sm_clock(CPU, Nvml())() == 1755.0
    for name in ("nvmlInit_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetClockInfo"):
        assert sm_clock(CPU, Nvml(fails=name))() is None


def test_a_gpus_calls_take_turns_and_the_clock_is_read_while_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, events, mhz = FakeCuda(monkeypatch), list[tuple[str, float]](), iter((1700.0, 1500.0))

    def clock() -> float:
        events.append(("read", cuda.clock))
        return next(mhz)

    def fails() -> None:
        raise ValueError("no such tile")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: events.append(("wait", cuda.clock)))
    monkeypatch.setattr(device, "sm_clock", lambda _: clock)
    monkeypatch.setattr(device, "SAMPLES", (1, 2))
    result = torch.empty(1)
    timings = time_calls(torch.device("cuda", 0), {"ours": lambda: cuda.launch(0, 2e-6, result), "bad": fails})
    timing = timings["ours"]
    assert (timing["sm_mhz"], timing["sm_mhz_least"]) == (1600.0, 1500.0)
    assert timing["us"] == pytest.approx(2.0)
    assert timings["bad"] == {"us": None, "note": "ValueError: no such tile"}
    (first, waited, second, _) = events[-4:]
    assert [what for what, _ in events[-4:]] == ["read", "wait"] * 2
    assert second[1] - waited[1] == pytest.approx(REPEATS * 2e-6)  # a replay was launched since the last wait
    assert first[1] == waited[1]


def test_a_library_that_loads_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[list[str]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device, "device_for", lambda task: CPU)
    monkeypatch.setattr(device.build, "main", lambda arguments: built.append(arguments) or 0)
    status = NativeStatus(True, "brought along")
    monkeypatch.setattr(device, "native_status", lambda device: status)
    (facts,) = library(Task(""), "library")
    assert (facts["kind"], facts["device"], built) == ("device", "cpu", [])
    status = NativeStatus(False, "not built")
    with pytest.raises(Absent, match="not built"):
        list(library(Task(""), "library"))
    assert built == [["--arch", "native"]]


def test_models_use_the_plans_of_the_rows_before_them() -> None:
    assert [impl.name for impl in bench().proven()] == [impl.name for impl in all_impls()]
    row = {"section": "mlp", "us": 1.0, "impls": ["native_mlp:1", "triton:2"]}
    attention = {"section": "attention", "us": 1.0, "impls": ["native_attention:3"]}
    failed = {**row, "us": None, "impls": ["native_mlp:3"]}
    kept = {impl.name for impl in bench(earlier=[row, attention, failed]).proven()}
    assert {"native_mlp:1", "triton:2", "native_attention:3", "torch", "dense"} <= kept
    assert not {"native_mlp:0", "native_mlp:3", "triton:1"} & kept
