"""Whatever ends a process of the GPU benchmark: what was measured is kept, the rest is named, a next start goes on."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from milkweed.bench.gpu import driver
from milkweed.bench.gpu.__main__ import COMPLETE, FAILED, NOTHING, PARTIAL, main
from milkweed.bench.gpu.journal import Record, append, ends, quarantine, read, rows
from milkweed.bench.gpu.plan import Step, Task, steps

from ...support.waiting import HANG_SECONDS, eventually
from .conftest import Plant

PLAN = "minutes=all,sections=attention"
UNITS = [unit for step in steps(Task("", sections=("attention",)))[1:] for unit in step.units]

# Sections without torch and CUDA. A unit of `attention` writes a row; FAULTS has code for some of them.
PLANTED = """
import os, sys, time, types
FAULTS = {faults!r}

def module(name, **functions):
    made = types.ModuleType(f"milkweed.bench.gpu.{{name}}")
    vars(made).update(functions)
    sys.modules[made.__name__] = made

def library(task, unit):
    yield {{"kind": {kind!r}, "device": {device!r}, "sources": "s"}}

def attention(task, unit):
    time.sleep({seconds})
    namespace = dict(globals(), passed=None)
    exec(FAULTS.get(unit, ""), namespace)
    _, what, batch, turn = unit.split("/")
    row = {{"what": what, "batch": int(batch), "quarantine": os.environ["MILKWEED_QUARANTINE"]}}
    row |= {{"us": 2.0, "iqr_us": 0.1, "floor_us": 1.0, "error": 0.001, "note": namespace.get("note", "")}}
    yield {{**row, "candidate": "native_attention:0", "ours": True, "passed": namespace["passed"]}}

module("device", library=library)
module("rows", attention=attention)
"""


def planted(
    faults: dict[str, str] | None = None, *, device: str = "H100", seconds: float = 0.0, kind: str = "device"
) -> str:
    return PLANTED.format(faults=faults or {}, device=device, seconds=seconds, kind=kind)


GRANDCHILD = f"9{os.getpid()}"
"""Seconds that nothing else on the machine sleeps, by which it is found."""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "day.jsonl"


def run(out: Path, *more: str) -> int:
    return main(["--out", str(out), "--plan", PLAN, *more])


def measured(records: list[Record]) -> set[str]:
    return {row["unit"] for row in rows(records)}


def tries(records: list[Record]) -> Counter[str]:
    return Counter(record["unit"] for record in records if record["kind"] == "end" and record["unit"] != "library")


@pytest.mark.slow
def test_what_is_there_is_not_measured_again_and_an_exception_costs_only_its_unit(
    out: Path, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(planted({UNITS[1]: "raise ValueError('half-way')"}))
    for _ in range(3):  # it is tried twice
        assert run(out) == PARTIAL
    assert tries(read(out)) == {**dict.fromkeys(UNITS, 1), UNITS[1]: 2}
    assert measured(read(out)) == {*UNITS} - {UNITS[1]}
    text = capsys.readouterr().out
    assert f"  {UNITS[1]}: error: ValueError: half-way" in text
    assert "partial: 0 failed, 1 not measured" in text


@pytest.mark.slow
def test_a_process_that_dies_or_hangs_is_named_and_another_goes_on(
    out: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A grandchild stands for a compiler that would run on into the next step.
    hang = f"import subprocess; subprocess.Popen(['sleep', '{GRANDCHILD}']); time.sleep(600)"
    plant(planted({UNITS[0]: "os.abort()", UNITS[2]: hang}))
    short = [step._replace(seconds=2.0) for step in steps(Task("", sections=("attention",)))]
    monkeypatch.setattr(driver, "steps", lambda task: short)
    assert run(out) == PARTIAL
    assert measured(read(out)) == {*UNITS} - {UNITS[0], UNITS[2]}
    text = capsys.readouterr().out
    assert f"  {UNITS[0]}: died: ended by SIGABRT" in text
    assert f"  {UNITS[2]}: died: took longer than 2 s" in text
    eventually(lambda: not any(GRANDCHILD in line for line in command_lines()), "the grandchild ends")
    log = out.with_suffix(".log").read_text()
    assert "Fatal Python error: Aborted" in log
    assert log.count("in attention") == 2  # where it aborted, and where it hung
    plant(planted())  # what died once can still be measured
    assert run(out) == COMPLETE
    assert tries(read(out)) == {**dict.fromkeys(UNITS, 1), UNITS[0]: 2, UNITS[2]: 2}


def command_lines() -> Iterator[list[str]]:
    return (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))


@pytest.mark.slow
def test_when_the_time_is_up_what_runs_is_ended_and_is_no_fault(
    out: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(planted({UNITS[0]: "time.sleep(600)"}))
    log = out.with_suffix(".log")
    driver.Driver(Task(str(out)), minutes=0.4)._run_step(Step(UNITS, 60))
    assert not log.exists()  # 24 s are less than a step needs to begin
    monkeypatch.setattr(driver, "LEAST_SECONDS", 0.5)
    driver.Driver(Task(str(out)), minutes=0.05)._run_step(Step(UNITS, 60))
    assert log.exists()
    assert not tries(read(out))


def test_a_check_that_fails_stays_failed(out: Path, plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    plant(planted({UNITS[0]: "passed, note = False, 'off by 1 %'"}))
    assert run(out) == FAILED
    plant(planted())
    assert run(out) == FAILED
    assert tries(read(out))[UNITS[0]] == 1
    assert f"{UNITS[0]}: wrong: 1 failed, the first: off by 1 %" in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.slow_beyond(1)
def test_a_kill_at_a_random_moment_loses_nothing(
    seed: int, out: Path, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(planted(seconds=0.1))
    command = [sys.executable, "-m", "milkweed.bench.gpu", "--out", str(out), "--plan", PLAN]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(random.Random(seed).uniform(0.2, 1.6))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    eventually(lambda: not any(str(out) in " ".join(line) for line in command_lines()), "what it began ends")
    before = read(out)
    done = {unit for unit, end in ends(before).items() if unit != "library"}
    assert done <= measured(before)
    if before:
        assert main(["--report", str(out), "--plan", PLAN]) == (PARTIAL if done != set(UNITS) else COMPLETE)
        named = capsys.readouterr().out
        assert all((f"  {unit}: " in named) is (unit not in done) for unit in UNITS)
    with out.open("ab") as file:
        file.write(b'{"kind": "row", "what": "half a li')  # what a kill within a write would leave
    assert run(out) == COMPLETE
    after = read(out)
    assert measured(after) == set(UNITS)
    assert all(tries(after)[unit] == 1 for unit in done)
    assert after[: len(before)] == before


def test_sigterm_still_prints_the_goals(out: Path, plant: Plant) -> None:
    plant(planted({UNITS[2]: "time.sleep(600)"}))
    command = [sys.executable, "-m", "milkweed.bench.gpu", "--out", str(out), "--plan", PLAN]
    ended = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    eventually(lambda: UNITS[1] in tries(read(out)))
    ended.terminate()
    text, _ = ended.communicate(timeout=HANG_SECONDS)
    assert ended.returncode == PARTIAL
    assert "goals:" in text
    assert all(f"  {unit}: there was no time for it" in text for unit in UNITS[2:])


def test_figures_of_another_gpu_or_other_settings_are_not_gone_on_with(
    out: Path, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(planted())
    assert run(out) == COMPLETE
    assert run(out, "--dtype", "float16") == run(out, "--nblocks", "2") == NOTHING
    plant(planted(device="H200"))
    assert run(out) == NOTHING
    assert "has the figures of device H100, here it is H200" in capsys.readouterr().err


ALL_ABORT = """
def smoke(task, unit):
    os.abort()
    yield

module("smoke", smoke=smoke)
"""


def test_every_tile_of_an_operator_that_aborts_is_named(
    out: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(planted() + ALL_ABORT)
    tiles = [f"native_mlp:{tile}" for tile in range(3)]
    few = [Step(["library"], 60), Step([f"smoke/native_mlp/{tile}" for tile in tiles], 60)]
    monkeypatch.setattr(driver, "steps", lambda task: few)
    assert main(["--out", str(out), "--plan", "sections=smoke"]) == FAILED
    assert quarantine(read(out)) == tiles
    assert set(tries(read(out)).values()) == {1}
    assert f"\nMILKWEED_QUARANTINE={','.join(tiles)}\n" in capsys.readouterr().out


def test_without_a_device_nothing_is_measured(out: Path, plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    plant(planted(kind="check"))
    assert run(out) == NOTHING
    assert "nothing was measured" in capsys.readouterr().err
    assert not measured(read(out))


def test_later_processes_run_neither_what_the_user_excludes_nor_what_was_unfit(
    out: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(planted())
    monkeypatch.setenv("MILKWEED_QUARANTINE", "triton")
    append(out, {"kind": "end", "unit": "smoke/native_mlp/native_mlp:3", "state": "wrong", "why": "off"})
    assert run(out) == FAILED
    assert {row["quarantine"] for row in rows(read(out))} == {"triton,native_mlp:3"}
    assert "\nMILKWEED_QUARANTINE=native_mlp:3\n" in capsys.readouterr().out
    assert os.environ["MILKWEED_QUARANTINE"] == "triton"


def test_folders_without_what_is_needed_are_refused_before_anything_runs(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, why in (("--photos", "no JPEG in"), ("--bundles", "expected model.safetensors")):
        with pytest.raises(SystemExit):
            run(out, option, str(tmp_path))
        assert why in capsys.readouterr().err
    assert not out.exists()
