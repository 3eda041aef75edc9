"""The GPU benchmark: its dry run ends, its checks notice wrong kernels, its goals are judged by what was measured."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from milkweed.bench.cuda.ceilings import Ceilings
from milkweed.bench.cuda.checks import checks
from milkweed.bench.cuda.precompile import Task, launch_once, precompile, triton_tasks
from milkweed.bench.cuda.report import goal_lines, goals, table
from milkweed.bench.cuda.rows import Candidate, Row, measure
from milkweed.bench.cuda.shapes import DRY_MLP, MLP_SHAPES
from milkweed.bench.cuda.timing import HostTimer, Timing, input_sets
from milkweed.bench.gpu import main
from milkweed.kernels.chain_ir import Monarch, Operator, Problem, evaluate
from milkweed.kernels.impls.base import Runner
from milkweed.kernels.tuning.verify import relative_error

CPU = torch.device("cpu")
CEILINGS = Ceilings(1e12, 1e14, 1 << 20)


def row(candidate: str, us: float | None, *, ours: bool, what: str = "ViT-B 768-3072", batch: int = 32) -> Row:
    return Row("mlp", what, batch, candidate, ours, us, 0.1, None, 1.0, 1e-3)


def test_dry_run_walks_every_section_but_the_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu.json"
    assert main(["--dry-run", "--sections", "check", "mlp", "attention", "cells", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["dry_run"] is True
    assert result["checks_passed"] > 50
    assert result["checks"] == []
    assert not [line for line in result["skipped"] if "ended by" in line]
    timed = {(r["section"], r["candidate"]) for r in result["rows"] if r["us"] is not None}
    ours = {("mlp", "native_mlp"), ("mlp", "native_linear"), ("mlp", "tuned"), ("attention", "native_attention:0")}
    peers = {("mlp", "dense"), ("mlp", "dense eager"), ("mlp", "Monarch bmm eager"), ("attention", "SDPA flash")}
    assert ours | peers <= timed
    assert "a dry run: none of these is a figure" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "nothing was measured" in capsys.readouterr().err


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
                y = y * 1.02
            if self.twist == "race":
                y = y + 1e-3 * self.calls
            if self.twist == "leak":
                y = y + y.mean()
            if self.twist == "lost":
                y = y.nan_to_num()
            return y.to(x.dtype)

        return Runner(call)


@pytest.mark.parametrize("twist", ["none", "scale", "race", "leak", "lost", "cuda"])
def test_checks_notice(twist: str) -> None:
    torch.manual_seed(0)
    found = list(checks(CPU, torch.bfloat16, [Twisted(twist)], nblocks=4, shapes=[DRY_MLP], rows=(15,)))
    assert [check.segment for check in found] == ["monarch"]
    assert all(check.passed for check in found) is (twist == "none")


def test_wrong_and_failing_candidates_are_rows_without_a_time() -> None:
    def fails(x: Tensor) -> Tensor:
        raise RuntimeError("too large a tile")

    candidates = [
        Candidate("right", True, lambda x: x.float().mul(2).to(x.dtype), 1.0),
        Candidate("wrong", True, lambda x: x * 3, 1.0),
        Candidate("fails", False, fails, 1.0),
    ]
    rows = measure(
        "mlp",
        "x",
        1,
        candidates,
        lambda: torch.randn(8, 8).to(torch.bfloat16),
        lambda x: x.double() * 2,
        timer=HostTimer(),
        ceilings=CEILINGS,
        skipped={"absent": "no nvcc"},
    )
    notes = {r.candidate: (r.us is not None, r.note) for r in rows}
    assert notes["right"] == (True, "")
    assert notes["wrong"][0] is False
    assert "wrong, not timed" in notes["wrong"][1]
    assert notes["fails"] == (False, "RuntimeError: too large a tile")
    assert notes["absent"] == (False, "no nvcc")
    assert "too large a tile" in "\n".join(table(rows))


def test_goals_take_the_best_dense_row_and_the_best_of_ours() -> None:
    rows = [
        row("dense eager", 30.0, ours=False),
        row("dense", 20.0, ours=False),
        row("Monarch bmm eager", 36.0, ours=False),
        row("native_mlp", 11.0, ours=True),
        row("tuned", 10.0, ours=True),
    ]
    found = {str(one["goal"]): one for one in goals(rows)}
    dense = found["MLP ViT-B batch 32: over the best dense row"]
    assert (dense["measured"], dense["wanted"], dense["met"]) == (2.0, 2.0, True)
    assert found["MLP ViT-B batch 32: over Monarch bmm"]["measured"] == 3.6
    missing = goals([row("dense", 20.0, ours=False), row("native_mlp", None, ours=True)])
    assert {one["met"] for one in missing} == {None}
    assert all("not measured" in line for line in goal_lines(missing))


def test_goals_of_small_batches_are_only_not_to_lose() -> None:
    found = goals([row("dense", 10.0, ours=False, batch=1), row("tuned", 10.1, ours=True, batch=1)])
    assert [(one["met"], "never slower" in str(one["goal"])) for one in found] == [(True, True)]


def test_inputs_rotate_through_twice_the_cache() -> None:
    sets = input_sets(lambda: torch.randn(1 << 16), 1 << 20)
    assert sets is not None
    assert sum(x.nbytes for x in sets) >= 2 << 20
    assert input_sets(lambda: torch.randn(8), 1 << 20) is None


def test_the_work_of_a_shape_is_counted_from_its_factors() -> None:
    for shape in MLP_SHAPES:
        weights = 4 * (shape.width // 4) * (shape.width // 4) * 2 + 2 * 4 * (shape.hidden // 4) * (shape.width // 4)
        assert shape.monarch_flops(1, 4) == 2 * weights
        assert shape.monarch_weight_bytes(4) == 2 * weights


def test_errors_that_are_no_number_are_infinite() -> None:
    assert relative_error(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")
    assert relative_error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])) == pytest.approx(1 / 34**0.5)


def test_host_timer_says_why_a_call_has_no_time() -> None:
    def fails() -> None:
        raise ValueError("no such tile")

    timings = HostTimer()({"good": [lambda: None], "bad": [fails]})
    assert isinstance(timings["good"], Timing)
    assert timings["bad"] == "ValueError: no such tile"


def test_compiling_ahead_runs_each_engine_on_what_it_takes() -> None:
    task = Task(DRY_MLP, 1, "dense", 4, CPU, torch.bfloat16)
    assert launch_once(task) == 3  # fc1 with GELU, fc2, fc1 alone; the whole MLP is not for it
    text = precompile([task, task._replace(impl="none such")], 120)
    assert text.startswith("2 of 2 compiled by ")
    assert "1 failed, the first:" in text
    named = {
        one.impl.partition(":")[0] for one in triton_tasks([DRY_MLP], (1,), nblocks=4, device=CPU, dtype=task.dtype)
    }
    assert named == {"triton", "triton_mlp"}


def test_a_tile_that_the_device_refuses_is_no_failure() -> None:
    assert not list(checks(CPU, torch.bfloat16, [Twisted("tile")], nblocks=4, shapes=[DRY_MLP], rows=(15,)))
