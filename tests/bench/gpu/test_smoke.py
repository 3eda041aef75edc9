"""The smoke test: wrong, racing, leaking, aborting and hanging kernels are found, named, and not run again."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from milkweed.bench.gpu import driver, smoke
from milkweed.bench.gpu.__main__ import FAILED, main
from milkweed.bench.gpu.device import Ceilings
from milkweed.bench.gpu.journal import COMPLETE, DIED, WRONG, ends, quarantine, read, rows
from milkweed.bench.gpu.measure import Bench
from milkweed.bench.gpu.plan import OPERATORS, TRITON, Stage, Task, stages
from milkweed.bench.gpu.smoke import ROWS, Case, cases, check, precompile
from milkweed.kernels.chain_ir import Monarch, Operator, Problem, evaluate
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

    def refuses(self, segment: Sequence[Operator], problem: Problem) -> str | None:
        return None if len(segment) == 1 and isinstance(segment[0], Monarch) else "another kind of segment"

    def build(self, segment: Sequence[Operator], problem: Problem) -> Runner:
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


def twisted(monkeypatch: pytest.MonkeyPatch, twist: str) -> list[Case]:
    impls: list[Impl] = [Twisted(twist)]
    monkeypatch.setattr(smoke, "impls_of", lambda operator, bench: impls)
    return list(cases("native_twisted", BENCH))


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


def test_every_operator_has_cases_on_few_and_many_rows_also_in_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: list(cases(name, BENCH)) for name in (*OPERATORS, *TRITON)}
    assert {name: {case.tile.partition(":")[0] for case in found[name]} for name in found} == {n: {n} for n in found}
    monkeypatch.setenv("MILKWEED_QUARANTINE", ",".join(found))
    assert {name: len(list(cases(name, BENCH))) for name in found} == {name: len(found[name]) for name in found}
    monkeypatch.setattr(smoke, "impls_of", lambda operator, bench: [EagerImpl()])
    assert set(ROWS) <= {case.problem.tokens for case in cases("torch", replace(BENCH, dry=False))}


def test_sums_and_norms_are_both_checked() -> None:
    case = next(case for case in cases("native_add_layernorm", BENCH) if case.problem.tokens == 17)
    x, added = case.inputs()
    right = case.truth(x, added)
    assert right.shape == (1, 17, 2 * x.shape[-1])
    torch.testing.assert_close(right[..., : x.shape[-1]], x.float() + added.float())
    checked = check(case)
    assert checked is not None
    assert checked["passed"]
    spoilt = check(replace(case, make=lambda: lambda *inputs: right.to(x.dtype).roll(1, -1)))
    assert spoilt is not None
    assert not spoilt["passed"]


def test_a_share_of_tiles_is_compiled_on_all_that_they_take_while_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(str(tmp_path / "day.jsonl"), dry_run=True)
    (row,) = precompile(task, "precompile/7")
    assert (row["candidate"], row["launched"]) == ("triton:1", 2 * 4)  # rows; fc1, with GELU, fc2, with its addition
    monkeypatch.setattr(smoke, "COMPILE_SECONDS", 0.0)
    assert [row["launched"] for row in precompile(task, "precompile/7")] == [0]


PLANTED = """
import os, sys, time
if "milkweed.bench.gpu.child" in sys.orig_argv:
    from milkweed.bench.gpu import smoke
    from milkweed.kernels.impls import base, native
    smoke.TILE_SECONDS = 6.0
    build = {kind: kind.build for kind in (native.NativeLinear, native.NativeAttention)}

    def planted(self, segment, problem):
        runner = build[type(self)](self, segment, problem)
        def call(x, residual):
            if self.name == "native_linear:1":
                os.abort()
            if self.name == "native_linear:2":
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
    chosen = ("library", "smoke/native_linear", "smoke/native_attention", "mlp/dry run/2/r1")

    def few(*, dry: bool) -> list[Stage]:
        kept = [tuple(step for step in stage if step.units[0] in chosen) for stage in stages(dry=dry)]
        return [stage for stage in kept if stage]

    monkeypatch.setattr(driver, "stages", few)
    plant(PLANTED)
    out = tmp_path / "day.jsonl"
    assert main(["--dry-run", "--out", str(out)]) == FAILED
    records, text = read(out), capsys.readouterr().out
    states = {unit.rpartition("/")[2]: end for unit, end in ends(records).items()}
    assert [states[f"native_linear:{tile}"]["state"] for tile in range(4)] == [COMPLETE, DIED, DIED, COMPLETE]
    assert states["native_linear:1"]["why"] == "ended by SIGABRT, at dry run monarch, 1x1"
    assert states["native_linear:2"]["why"] == "took longer than 6 s, at dry run monarch, 1x1"
    assert states["native_attention:0"]["state"] == WRONG
    assert "the limit is 6e-03" in states["native_attention:0"]["why"]
    errors = [r["error"] for r in records if r["kind"] == "check" and r["unit"].endswith("native_attention:0")]
    assert errors == pytest.approx([0.01] * len(errors), rel=0.3)
    bad = ("native_linear:1", "native_linear:2", "native_attention:0")
    assert sorted(quarantine(records)) == sorted(bad)
    assert "MILKWEED_QUARANTINE=native_" in text
    checks = Counter(record["unit"] for record in records if record["kind"] == "check")
    assert checks["smoke/native_linear/native_linear:3"] == 2 * 4  # rows, segments
    (row,) = (row for row in rows(records) if row.get("candidate") == "native_linear")
    assert row["us"] > 0
    assert not set(bad) & set(row["note"].partition(" ")[2].split(" | "))
    assert main(["--dry-run", "--out", str(out)]) == FAILED  # it stays so, and nothing is measured again
    assert sum(record["kind"] == "check" for record in read(out)) == sum(checks.values())
