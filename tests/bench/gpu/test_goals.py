"""Goals are judged by the peers that they name, in two rounds, at a known clock; else they read "not measured"."""

from typing import Any

import pytest

from milkweed.bench.gpu.goals import goal_lines, judge, table
from milkweed.bench.gpu.plan import (
    DENSE_COMPILED,
    DENSE_EAGER,
    SECTIONS,
    TILES,
    TWIN_COMPILED,
    TWIN_EAGER,
    Task,
    parse_plan,
    steps,
)
from milkweed.kernels.impls.native import native_impls
from milkweed.kernels.impls.quantized import quantized_impls
from milkweed.kernels.impls.quarantine import PARTS
from milkweed.kernels.impls.triton import triton_impls

GOAL = "MLP ViT-B batch 32: over dense"
TUNED = "MLP ViT-B batch 32: tuned is not slower than dense"
JPEG = "ViT-B over HTTP: ms, the median of one JPEG alone"
LAYERS = ("mlp", "mlp+qkv+proj")
SHARE = "ViT-B over HTTP: share of its slowest part"

Rows = list[dict[str, Any]]


def row(candidate: str, us: float | None, *, turn: int = 1, **more: Any) -> dict[str, Any]:
    ours = candidate.startswith(("native", "tuned", "triton"))
    where = {"section": "mlp", "what": "ViT-B", "batch": 32, "candidate": candidate, "round": turn, "us": us}
    timed = {"iqr_us": 0.1, "floor_us": 1.0, "error": 1e-3, "note": "", "sm_mhz": 1755.0}
    return {**where, **timed, "ours": ours, **more}


def two_rounds(*, second: float = 10.0, **more: Any) -> Rows:
    peers = [(DENSE_COMPILED, 22.0), (DENSE_EAGER, 30.0), ("dense", 20.0), ("Monarch bmm eager", 36.0)]
    return [
        made
        for turn, ours in ((1, 10.0), (2, second))
        for made in [*(row(name, us, turn=turn) for name, us in peers), row("native_mlp", ours, turn=turn, **more)]
    ]


def figure(name: str, value: Any, *, candidate: str = "one JPEG", turn: int = 1, note: str = "") -> dict[str, Any]:
    where = {"section": "served", "what": "ViT-B", "batch": 1, "candidate": candidate, "round": turn}
    return {**where, "figures": {} if value is None else {name: value}, "note": note}


def judged(rows: Rows, goal: str = GOAL) -> dict[str, Any]:
    return next(one for one in judge(rows) if one["goal"] == goal)


def test_over_dense_means_over_the_best_dense_row() -> None:
    goal = judged(two_rounds())
    assert (goal["measured"], goal["wanted"], goal["met"], goal["by"]) == (2.0, 2.0, True, "native_mlp")


def test_a_forward_is_judged_by_its_own_row_over_the_best_dense_one() -> None:
    us = {"fused mlp": 10.0, "fused mlp+qkv+proj": 8.0, "dense twin": 12.0, TWIN_COMPILED: 15.0, TWIN_EAGER: 14.0}
    where = {"section": "forward", "what": "vit_base_patch16_224"}
    rows = [row(name, us[name], turn=turn, ours=name[0] == "f", **where) for name in us for turn in (1, 2)]
    mlps, every = (judged(rows, f"vit_base_patch16_224 fused {which} batch 32: over dense") for which in LAYERS)
    assert (mlps["measured"], mlps["by"], mlps["met"]) == (1.2, "fused mlp", False)
    assert (every["measured"], every["by"]) == (1.5, "fused mlp+qkv+proj")


def test_rules_say_what_a_miss_decides() -> None:
    inner = "MLP ViT-B batch 32: inner half in Gluon over Triton's launches"
    us = {"gluon_mlp:0": 11.0, "gluon_mlp:1": 9.0, "triton_mlp": 10.0, "triton": 12.0}
    rows = [row(name, us[name], turn=turn, ours=True) for name in us for turn in (1, 2)]
    goal = judged(rows, inner)
    assert (goal["measured"], goal["by"], goal["met"]) == (1.111, "gluon_mlp:1", False)
    assert next(goal_lines([goal])).endswith("; so gluon_mlp is deleted")
    faster = [made | {"us": 8.0} if made["candidate"] == "gluon_mlp:0" else made for made in rows]
    assert judged(faster, inner)["met"] is True
    assert "deleted" not in next(goal_lines([judged(faster, inner)]))

    where = {"section": "quantized", "what": "ViT-B fc1"}
    us = {
        "16 bits": 28.0,
        "16 bits, torch.compile": 26.0,
        "int8, triton_quantized:1": 20.0,
        "fp8, triton_quantized:1": 9,
    }
    rows = [row(name, us[name], turn=turn, ours="triton" in name, **where) for name in us for turn in (1, 2)]
    goal = judged(rows, "ViT-B fc1 batch 32: int8 over 16 bits")
    assert (goal["measured"], goal["by"], goal["met"]) == (1.3, "int8, triton_quantized:1", False)
    assert "so cuBLASLt's fp8 takes the place of triton_quantized" in next(goal_lines([goal]))


def test_what_two_launches_a_layer_cannot_reach_has_no_verdict() -> None:
    rows = [made | {"what": "ViT-S"} for made in two_rounds()]
    goal = judged(rows, "MLP ViT-S batch 32: over dense")
    assert (goal["measured"], goal["met"]) == (2.0, None)
    assert next(goal_lines([goal])).startswith("  beside      2x  MLP ViT-S batch 32: over dense, wanted 2.0x")


def test_the_worse_round_counts_and_both_are_told() -> None:
    goal = judged(two_rounds(second=12.5))
    assert (goal["measured"], goal["met"], goal["rounds"]) == (1.6, False, [2.0, 1.6])
    (line,) = goal_lines([goal])
    assert line == (
        f"  missed    1.6x  {GOAL}, wanted 2.0x, by native_mlp, rounds 2.0/1.6, spread 25.0 %, SM 1755-1755 MHz"
    )


@pytest.mark.parametrize(
    ("rows", "goal", "why"),
    [
        ([], GOAL, f"round 1: no row of {DENSE_COMPILED}"),
        ([r for r in two_rounds() if r["candidate"] != DENSE_COMPILED], GOAL, f"round 1: no row of {DENSE_COMPILED}"),
        ([row(DENSE_COMPILED, None, note="it broke")], GOAL, f"round 1: {DENSE_COMPILED}: it broke"),
        ([r for r in two_rounds() if r["round"] == 1], GOAL, f"round 2: no row of {DENSE_COMPILED}"),
        (two_rounds(sm_mhz=None), GOAL, "round 1: the SM clock is unknown"),
        (two_rounds(), TUNED, "round 1: none of ours was timed"),
        ([figure("p50_ms", 2.0)], JPEG, "round 2: no row of one JPEG"),
        ([figure("p50_ms", None, note="nobody answered")], JPEG, "round 1: nobody answered"),
        ([figure("p50_ms", "not finite")], JPEG, "round 1: p50_ms is not finite"),
    ],
)
def test_what_a_goal_lacks_is_named(rows: Rows, goal: str, why: str) -> None:
    found = judged(rows, goal)
    assert (found["measured"], found["met"], found["why"]) == (None, None, why)
    (line,) = goal_lines([found])
    assert line.startswith(f"  not measured  {goal} (wanted ")
    assert line.endswith(f"): {why}")


def test_a_figure_is_that_of_the_worst_row_of_all_rounds() -> None:
    rows = [figure("p50_ms", 2.0), figure("p50_ms", 2.9), figure("p50_ms", 1.0, turn=2)]
    met, missed = judged(rows, JPEG), judged([*rows, figure("p50_ms", 3.5, turn=2)], JPEG)
    assert (met["measured"], met["met"], met["rounds"]) == (2.9, True, [2.9, 1.0])
    assert list(goal_lines([missed])) == [f"  missed    3.5  {JPEG}, wanted at most 3.0, rounds 2.9/3.5"]
    shares = [
        figure("of_the_limit", share, candidate="end to end", turn=turn) for turn, share in enumerate((0.9, 0.79), 1)
    ]
    share = judged(shares, SHARE)
    assert (share["measured"], share["met"]) == (0.79, False)
    assert "wanted at least 0.8" in next(goal_lines([share]))


def test_tables_have_the_fastest_first_and_say_why_one_did_not_run() -> None:
    rows = [row(DENSE_EAGER, 30.0), row("native_mlp", 10.0), row("triton", None, note="no compiler")]
    first, *lines = table([*rows, figure("p50_ms", 2.0, note="alone")])
    assert first == "served ViT-B, round 1: one JPEG: p50_ms 2.0 (alone)"
    assert lines[0] == "mlp ViT-B, batch 32, round 1, SM 1755 MHz"
    assert lines[2].split() == ["*", "native_mlp", "10.0", "0.1", "10%", "3.00x", "1.0e-03"]
    assert lines[4].split(maxsplit=2) == ["triton", "-", "no compiler"]


def units(*, dry: bool = False, **task: Any) -> list[str]:
    return [unit for step in steps(Task("", dry_run=dry, **task)) for unit in step.units]


def test_a_plan_has_minutes_and_sections() -> None:
    assert parse_plan("") == (9.0, ())
    assert parse_plan("minutes=3") == (3.0, ())
    assert parse_plan("minutes=all,sections=mlp+attention") == (float("inf"), ("mlp", "attention"))
    for wrong in ("minutes=x", "hours=12", "sections=mpl"):
        with pytest.raises(ValueError, match=wrong.partition("=")[2]):
            parse_plan(wrong)
    assert units(sections=("cells",))[:3] == ["library", "cells/ViT-B merge/32/r1", "cells/ViTAE-T cell 1/32/r1"]


def test_the_order_is_that_of_value() -> None:
    every = units()
    by_value = ["library", "smoke/gluon_mlp/gluon_mlp:0", "smoke/native_mlp/native_mlp:0", "smoke/triton/triton:0"]
    by_value += ["ceilings", "mlp/ViT-B/32/r1", "counters/gluon_mlp:1", "quantized/ViT-B fc1/32/r1"]
    by_value += ["cells/ViT-B merge/32/r1", "levers/vit_base_patch16_224/32/r1", "attention/ViT-B/32/r1"]
    by_value += ["mlp/ViT-S/32/r1", "forward/vit_base_patch16_224/32/r1", "mlp/ViT-B/32/r2", "served/r1"]
    assert sorted(by_value, key=every.index) == by_value
    assert len(every) == len(set(every))
    assert {unit.partition("/")[0] for unit in every} == set(SECTIONS) - {"images"}  # on request
    assert {unit.partition("/")[0] for unit in units(dry=True)} == set(SECTIONS) - {"images"}
    assert "images/bad files: of the folder/dali exact" in units(sections=("images",), bad="DIR")
    assert "images/bad files: of the folder/dali exact" not in units(sections=("images",))


def test_every_tile_of_every_kernel_is_checked() -> None:
    there = {*PARTS, *(impl.name for impl in (*native_impls(), *triton_impls(), *quantized_impls()))}
    assert {tile for tiles in TILES.values() for tile in tiles} == there
