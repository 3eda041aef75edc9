"""The smoke test: wrong, racing, leaking, aborting and hanging kernels are found, named, and not run again."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from milkweed.bench.gpu import driver, smoke
from milkweed.bench.gpu.__main__ import FAILED, main
from milkweed.bench.gpu.device import Ceilings
from milkweed.bench.gpu.journal import COMPLETE, DIED, WRONG, Absent, ends, quarantine, read, rows
from milkweed.bench.gpu.measure import Bench
from milkweed.bench.gpu.plan import TILES, Step, Task, steps
from milkweed.bench.gpu.smoke import ROWS, Case, cases, check, counters, racecheck
from milkweed.kernels.chain_ir import ChainOp, Monarch, Problem, evaluate
from milkweed.kernels.impls.base import Impl, Runner
from milkweed.kernels.impls.torch_ops import EagerImpl

from .conftest import Plant

BENCH = Bench(torch.device("cpu"), torch.bfloat16, 4, [], Ceilings(1e12, 1e14), dry=True)


class Twisted:
    """An impl for one Monarch layer whose results `twist` spoils."""

    name = "native_twisted:0"

    def __init__(self, twist: str) -> None:
        self.twist = twist
        self.calls = 0

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        return None if len(segment) == 1 and isinstance(segment[0], Monarch) else "another kind of segment"

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        def call(x: Tensor, residual: Tensor | None) -> Tensor:
            self.calls += 1
            y = evaluate(segment, x.float())
            if self.twist == "tile":
                raise RuntimeError("monarch_mlp: not launched: monarch_mlp: tile needs more shared memory")
            if self.twist == "cuda":
                raise RuntimeError("monarch_mlp: not launched: an illegal memory access was encountered")
            if self.twist == "scale":
                y = y * 1.01
            if self.twist == "race":
                y = y + 1e-3 * self.calls
            if self.twist == "leak":
                y = y + y.mean()
            if self.twist == "lost":
                y = y.nan_to_num()
            return y.to(x.dtype)

        return Runner(call)


def cases_of(tile: str, bench: Bench = BENCH) -> list[Case]:
    return [case for case in cases(tile, bench) if isinstance(case, Case)]


def twisted(monkeypatch: pytest.MonkeyPatch, twist: str) -> list[Case]:
    impls: list[Impl] = [Twisted(twist)]
    monkeypatch.setattr(smoke, "impls_of", lambda bench: impls)
    return cases_of("native_twisted:0")


@pytest.mark.parametrize(
    ("twist", "said"),
    [
        ("none", ""),
        ("scale", "relative error 1."),
        ("race", "other bits the second time"),
        ("leak", "a NaN in the last row is lost or spreads"),
        ("lost", "a NaN in the last row is lost or spreads"),
    ],
)
def test_a_check_notices(twist: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    checked = [check(case) for case in twisted(monkeypatch, twist)]
    assert len(checked) == 4  # fc1 and fc2, on 1 and 17 rows in a dry run
    many = checked[-1]
    assert many is not None
    assert many["passed"] is (twist == "none")
    assert said in str(many["note"])


def test_a_tile_that_the_device_refuses_is_no_failure_and_a_failed_launch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [check(case) for case in twisted(monkeypatch, "tile")] == [None] * 4
    with pytest.raises(RuntimeError, match="illegal memory access"):
        check(twisted(monkeypatch, "cuda")[0])


@pytest.mark.slow
def test_every_tile_has_cases_on_few_and_many_rows_also_in_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [tile for tiles in TILES.values() for tile in tiles]
    counts = {tile: len(cases_of(tile)) for tile in every}
    assert all(counts.values())
    monkeypatch.setenv("MILKWEED_QUARANTINE", ",".join(every))
    assert {tile: len(cases_of(tile)) for tile in every} == counts
    monkeypatch.setattr(smoke, "impls_of", lambda bench: [EagerImpl()])
    assert set(ROWS) <= {case.problem.tokens for case in cases_of("torch", replace(BENCH, dry=False))}


def test_a_tile_that_takes_nothing_here_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Twisted, "refuses", lambda *_: "no compiler")
    assert not twisted(monkeypatch, "none")
    with pytest.raises(Absent, match="no compiler"):
        list(smoke.smoke(Task(str(tmp_path / "day.jsonl"), dry_run=True), "smoke/native_twisted/native_twisted:0"))


def test_sums_and_norms_are_both_checked() -> None:
    case = next(case for case in cases_of("native_add_layernorm") if case.problem.tokens == 17)
    (x, added), right = case.data()
    assert right.shape == (1, 17, 2 * x.shape[-1])
    torch.testing.assert_close(right[..., : x.shape[-1]], x.float() + added.float())
    for make, passed in ((case.make, True), (lambda: lambda *_: right.to(x.dtype).roll(1, -1), False)):
        checked = check(replace(case, make=make))
        assert checked is not None
        assert checked["passed"] is passed


PLANTED = """
import os, sys, time
if "milkweed.bench.gpu.step" in sys.orig_argv:
    from milkweed.kernels.impls import base, native
    build = {kind: kind.build for kind in (native.NativeMlp, native.NativeAttention)}

    def planted(self, segment, problem):
        runner = build[type(self)](self, segment, problem)
        def call(x, residual):
            if self.name == "native_mlp:1":
                os.abort()
            if self.name == "native_mlp:2":
                time.sleep(1000)
            y = runner(x, residual)
            return y * 1.01 if self.name == "native_attention:0" else y
        return base.Runner(call)

    for kind in build:
        kind.build = planted
"""


@pytest.mark.slow
def test_faults_are_named_and_quarantined_and_the_rest_goes_on(
    tmp_path: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator that aborts the process, one that hangs, one wrong by 1 %; then rows without them."""
    chosen = ("smoke/native_mlp/native_mlp:0", "smoke/native_attention/native_attention:0", "mlp/dry run/2/r1")

    def few(task: Task) -> list[Step]:
        kept = [step for step in steps(task) if step.units[0] in ("library", *chosen)]
        return [step._replace(seconds=20.0) if step.section == "smoke" else step for step in kept]

    monkeypatch.setattr(driver, "steps", few)
    plant(PLANTED)
    out = tmp_path / "day.jsonl"
    assert main(["--dry-run", "--out", str(out)]) == FAILED
    records, text = read(out), capsys.readouterr().out
    states = {unit.rpartition("/")[2]: end for unit, end in ends(records).items()}
    assert [states[f"native_mlp:{tile}"]["state"] for tile in range(4)] == [COMPLETE, DIED, DIED, COMPLETE]
    assert states["native_mlp:1"]["why"] == "ended by SIGABRT"
    assert states["native_mlp:2"]["why"] == "took longer than 20 s"
    assert states["native_attention:0"]["state"] == WRONG
    assert "the limit is 6e-03" in states["native_attention:0"]["why"]
    errors = [r["error"] for r in records if r["kind"] == "check" and r["unit"].endswith("native_attention:0")]
    assert errors == pytest.approx([0.01] * len(errors), rel=0.3)
    bad = ("native_mlp:1", "native_mlp:2", "native_attention:0")
    assert sorted(quarantine(records)) == sorted(bad)
    assert "MILKWEED_QUARANTINE=native_" in text
    checks = Counter(record["unit"] for record in records if record["kind"] == "check")
    assert checks["smoke/native_mlp/native_mlp:3"] == 2 * 2  # rows, segments
    (row,) = (row for row in rows(records) if row.get("candidate") == "native_mlp")
    assert row["us"] > 0
    assert not set(bad) & set(row["note"].partition(" ")[2].split(" | "))
    assert main(["--dry-run", "--out", str(out)]) == FAILED  # it stays so, and nothing is measured again
    assert sum(record["kind"] == "check" for record in read(out)) == sum(checks.values())


def test_the_race_checker_watches_a_process_and_its_absence_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    task = Task(str(tmp_path / "day.jsonl"), dry_run=True)
    with pytest.raises(Absent, match="compute-sanitizer is not on this machine"):
        list(racecheck(task, "racecheck/native_mlp"))
    tool, said = tmp_path / "compute-sanitizer", "RACECHECK SUMMARY: 1 hazard"
    for status, passed in ((9, False), (0, True), (1, None)):
        tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\necho "{said}"\nexit {status}\n')
        tool.chmod(0o755)
        if passed is None:
            with pytest.raises(Absent, match=said):
                list(racecheck(task, "racecheck/native_mlp"))
            continue
        (row,) = racecheck(task, "racecheck/native_mlp")
        assert (row["passed"], row["note"]) == (passed, said)
    called = (tmp_path / "called").read_text()
    assert "--error-exitcode 9 --tool racecheck" in called
    assert "milkweed.bench.gpu.smoke native_mlp" in called
    smoke.main("native_mlp", json.dumps(asdict(task)))  # what it watches


def test_counters_are_those_of_a_tile_s_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    task, unit = Task(str(tmp_path / "day.jsonl"), dry_run=True), "counters/gluon_mlp:1"
    with pytest.raises(Absent, match="ncu is not on this machine"):
        list(counters(task, unit))
    said = [
        "==PROF== Connected",
        '"ID","Kernel Name","lts__t_bytes.sum","launch__grid_size"',
        '"","","Mbyte",""',
        '"0","block_product","12.5","99"',
        '"1","inner_product","3.25","132"',
    ]
    tool = tmp_path / "ncu"
    for lines, status in ((said, 0), (["==ERROR== ERR_NVGPUCTRPERM"], 1), (["==PROF== no kernel"], 0)):
        text = "\n".join(lines)
        tool.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/called\ncat <<'END'\n{text}\nEND\nexit {status}\n")
        tool.chmod(0o755)
        if lines is not said:
            with pytest.raises(Absent, match=lines[0]):
                list(counters(task, unit))
            continue
        first, inner = counters(task, unit)
        assert (first["candidate"], first["figures"]) == ("block_product", {"lts__t_bytes.sum Mbyte": "12.5"})
        assert (inner["what"], inner["figures"]) == ("launch 1", {"lts__t_bytes.sum Mbyte": "3.25"})
    assert "milkweed.bench.gpu.smoke gluon_mlp:1" in (tmp_path / "called").read_text()
    smoke.main("native_mlp:1", json.dumps(asdict(task)))  # what is profiled
