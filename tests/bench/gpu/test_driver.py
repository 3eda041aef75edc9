"""Whatever ends a process of the GPU benchmark: what was measured is kept, the rest is named, a next start goes on."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from milkweed.bench.gpu import driver
from milkweed.bench.gpu.command import COMPLETE, FAILED, NOTHING, PARTIAL, main
from milkweed.bench.gpu.journal import Record, ends, read, rows
from milkweed.bench.gpu.plan import Plan, Stage, all_units, stages

from ...support.waiting import HANG_SECONDS, eventually, has_ended
from .conftest import Plant

PLAN = "minutes=all,sections=attention"
UNITS = [unit for unit in all_units(Plan(None, frozenset({"attention"})), dry=False) if unit != "library"]

# Sections without torch and CUDA. A unit of `attention` writes a row; FAULTS has code for some of them.
PLANTED = """
import os, sys, time, types
FAULTS = {faults!r}

def module(name, **functions):
    made = types.ModuleType(f"milkweed.bench.gpu.{{name}}")
    vars(made).update(functions)
    sys.modules[made.__name__] = made

def library(task, writer):
    return lambda unit: writer({{"kind": "device", "device": {device!r}, "sources": "s"}})

def attention(task, writer):
    def measure(unit):
        time.sleep({seconds})
        exec(FAULTS.get(unit, ""))
        _, what, batch, turn = unit.split("/")
        quarantine = os.environ["MILKWEED_QUARANTINE"]
        row = {{"unit": unit, "what": what, "batch": int(batch), "round": int(turn[1:]), "quarantine": quarantine}}
        timed = {{"us": 2.0, "iqr_us": 0.1, "floor_us": 1.0, "error": 0.001, "note": ""}}
        writer({{**row, **timed, "candidate": "native_attention:0", "ours": True}})
    return measure

module("prepare", library=library)
module("rows.bench", timed=attention)
"""


def planted(faults: dict[str, str] | None = None, *, device: str = "H100", seconds: float = 0.0) -> str:
    return PLANTED.format(faults=faults or {}, device=device, seconds=seconds)


GRANDCHILD = f"9{os.getpid()}"
"""Seconds that nothing else on the machine sleeps, by which it is found."""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "day.jsonl"


def run(out: Path, *more: str) -> int:
    return main(["--out", str(out), "--plan", PLAN, *more])


def measured(records: list[Record]) -> set[str]:
    return {row["unit"] for row in rows(records)}


def begins(records: list[Record]) -> Counter[str]:
    return Counter(record["unit"] for record in records if record["kind"] == "begin" and record["unit"] != "library")


def limited(monkeypatch: pytest.MonkeyPatch, limit: float) -> None:
    """Give each unit of the plan less time."""

    def short(*, dry: bool) -> list[Stage]:
        return [tuple(replace(step, unit_limit=limit) for step in stage) for stage in stages(dry=dry)]

    monkeypatch.setattr(driver, "stages", short)


def test_what_is_there_is_not_measured_again(out: Path, plant: Plant) -> None:
    plant(planted())
    assert run(out) == COMPLETE
    assert run(out) == COMPLETE
    assert begins(read(out)) == dict.fromkeys(UNITS, 1)
    assert measured(read(out)) == set(UNITS)
    assert run(out, "--nblocks", "2") == NOTHING  # its figures are of other settings


def test_a_section_that_raises_half_way_costs_only_that_unit(
    out: Path, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(planted({UNITS[1]: "raise ValueError('half-way')"}))
    assert run(out) == PARTIAL
    assert measured(read(out)) == {*UNITS} - {UNITS[1]}
    assert f"  {UNITS[1]}: error: ValueError: half-way" in capsys.readouterr().out
    assert run(out) == PARTIAL  # tried once more
    assert run(out) == PARTIAL
    assert begins(read(out)) == {**dict.fromkeys(UNITS, 1), UNITS[1]: 2}
    assert "1 not measured" in capsys.readouterr().out


def test_what_failed_once_can_still_be_measured(out: Path, plant: Plant) -> None:
    plant(planted({UNITS[1]: "os.abort()"}))
    assert run(out) == PARTIAL
    plant(planted())
    assert run(out) == COMPLETE
    assert begins(read(out)) == {**dict.fromkeys(UNITS, 1), UNITS[1]: 2}


def test_a_process_that_dies_or_hangs_is_named_and_another_goes_on(
    out: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A grandchild stands for a compiler that would run on into the next step.
    hang = f"import subprocess; subprocess.Popen(['sleep', '{GRANDCHILD}']); time.sleep(600)"
    plant(planted({UNITS[0]: "os.abort()", UNITS[2]: hang}))
    limited(monkeypatch, 2.0)
    assert run(out) == PARTIAL
    assert measured(read(out)) == {*UNITS} - {UNITS[0], UNITS[2]}
    text = capsys.readouterr().out
    assert f"  {UNITS[0]}: died: ended by SIGABRT" in text
    assert f"  {UNITS[2]}: died: took longer than 2 s" in text
    eventually(lambda: not any(GRANDCHILD in line for line in command_lines()), "the grandchild ends")
    log = out.with_suffix(".log").read_text()
    assert "Fatal Python error: Aborted" in log
    assert "Timeout (0:00:02)!" in log


def command_lines() -> Iterator[list[str]]:
    return (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))


def test_a_check_that_fails_stays_failed(out: Path, plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "writer({'kind': 'check', 'unit': unit, 'passed': False, 'note': 'off by 1 %'})"
    plant(planted({UNITS[0]: wrong}))
    assert run(out) == FAILED
    plant(planted())
    assert run(out) == FAILED
    assert begins(read(out))[UNITS[0]] == 1
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
    before = read(out)
    pids = {record["pid"] for record in before if record["kind"] == "begin"}
    eventually(lambda: all(map(has_ended, pids)), "what a killed driver began ends")
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
    assert all(begins(after)[unit] == 1 for unit in done)
    assert after[: len(before)] == before


def test_sigterm_still_prints_the_goals(out: Path, plant: Plant) -> None:
    plant(planted({UNITS[2]: "time.sleep(600)"}))
    command = [sys.executable, "-m", "milkweed.bench.gpu", "--out", str(out), "--plan", PLAN]
    ended = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    eventually(lambda: UNITS[2] in begins(read(out)))
    ended.terminate()
    text, _ = ended.communicate(timeout=HANG_SECONDS)
    assert ended.returncode == PARTIAL
    assert "goals:" in text
    assert f"  {UNITS[2]}: its process was ended" in text
    assert f"  {UNITS[3]}: there was no time for it" in text


def test_figures_of_another_gpu_or_other_settings_are_not_gone_on_with(
    out: Path, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(planted())
    assert run(out) == COMPLETE
    assert run(out, "--dtype", "float16") == NOTHING
    plant(planted(device="H200"))
    assert run(out) == NOTHING
    assert "has the figures of device H100, here it is H200" in capsys.readouterr().err


def test_without_a_device_nothing_is_measured(out: Path, plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    plant(planted().replace('lambda unit: writer({"kind": "device"', 'lambda unit: dict({"kind": "none"'))
    assert run(out) == NOTHING
    assert "nothing was measured" in capsys.readouterr().err
    assert not measured(read(out))


def test_the_users_own_quarantine_is_kept(out: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(planted())
    monkeypatch.setenv("MILKWEED_QUARANTINE", "triton")
    assert run(out) == COMPLETE
    assert {row["quarantine"] for row in rows(read(out))} == {"triton"}
    assert os.environ["MILKWEED_QUARANTINE"] == "triton"


def test_folders_without_what_is_needed_are_refused_before_anything_runs(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, why in (("--photos", "no JPEG in"), ("--bundles", "expected model.safetensors")):
        with pytest.raises(SystemExit):
            run(out, option, str(tmp_path))
        assert why in capsys.readouterr().err
    assert not out.exists()
