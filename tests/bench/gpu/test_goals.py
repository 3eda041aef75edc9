"""Goals are judged by the peers that they name, in two rounds, at a known clock; else they read "not measured"."""

from pathlib import Path
from typing import Any

import pytest

from milkweed.bench.gpu.goals import DENSE_COMPILED, DENSE_EAGER, doubt_lines, goal_lines, judge, table
from milkweed.bench.gpu.journal import Journal
from milkweed.bench.gpu.plan import Plan, Step, all_units, parse_plan, section_names, stages

GOAL = "MLP ViT-B batch 32: over dense"


def row(candidate: str, us: float | None, *, turn: int = 1, **more: Any) -> dict[str, Any]:
    ours = candidate.startswith(("native", "tuned", "triton"))
    found = {"section": "mlp", "what": "ViT-B", "batch": 32, "candidate": candidate, "round": turn, "us": us}
    timed = {"iqr_us": 0.1, "floor_us": 1.0, "error": 1e-3, "note": "", "sm_mhz": 1755.0}
    return {**found, **timed, "ours": ours, **more}


def two_rounds(*, second: float = 10.0, **more: Any) -> list[dict[str, Any]]:
    peers = [(DENSE_COMPILED, 22.0), (DENSE_EAGER, 30.0), ("dense", 20.0), ("Monarch bmm eager", 36.0)]
    return [
        each
        for turn, ours in ((1, 10.0), (2, second))
        for each in [*(row(name, us, turn=turn) for name, us in peers), row("native_mlp", ours, turn=turn, **more)]
    ]


def said(rows: list[dict[str, Any]], goal: str = GOAL) -> dict[str, Any]:
    return next(one for one in judge(rows) if one["goal"] == goal)


def test_over_dense_means_over_the_best_dense_row() -> None:
    found = said(two_rounds())
    assert (found["measured"], found["wanted"], found["met"], found["by"]) == (2.0, 2.0, True, "native_mlp")
    assert (
        said(two_rounds(), "MLP ViT-B batch 32: tuned is not slower than dense")["why"]
        == "round 1: none of ours was timed"
    )


def test_the_worse_round_counts_and_both_are_told() -> None:
    found = said(two_rounds(second=12.5))
    assert (found["measured"], found["met"], found["rounds"]) == (1.6, False, [2.0, 1.6])
    assert found["spread"] == pytest.approx(0.25)
    (line,) = goal_lines([found])
    assert "missed" in line
    assert "rounds 2.0/1.6, spread 25.0 %, SM 1755-1755 MHz" in line


def test_without_the_named_peer_nothing_is_met() -> None:
    weaker = [each for each in two_rounds() if each["candidate"] != DENSE_COMPILED]
    found = said(weaker)
    assert (found["measured"], found["met"], found["why"]) == (None, None, f"round 1: no row of {DENSE_COMPILED}")
    refused = [*weaker, row(DENSE_COMPILED, None, note="RuntimeError: no")]
    assert said(refused)["why"] == f"round 1: {DENSE_COMPILED}: RuntimeError: no"
    assert "  not measured  " + GOAL in next(goal_lines([found]))


def test_one_round_or_no_clock_or_no_own_row_is_not_measured() -> None:
    assert said([each for each in two_rounds() if each["round"] == 1])["why"].startswith("round 2: no row of")
    assert said(two_rounds(sm_mhz=None))["why"] == "round 1: the SM clock is unknown"
    peers = [each for each in two_rounds() if not each["ours"]]
    assert said([*peers, row("native_mlp", None)])["why"] == "round 1: none of ours was timed"
    assert said([])["met"] is None


def test_what_is_in_doubt_is_counted_over_all_chains() -> None:
    rows = [row("tuned", 1.0, doubts={"wide tiles": chosen, "old tiles": False}) for chosen in (True, False, False)]
    assert list(doubt_lines(rows)) == ["  never chosen in 3 chains: old tiles", "  chosen in 1 of 3 chains: wide tiles"]
    assert list(doubt_lines([row("tuned", 1.0)])) == []


def test_tables_have_the_fastest_first_and_say_why_one_did_not_run() -> None:
    lines = list(table([row(DENSE_EAGER, 30.0), row("native_mlp", 10.0), row("triton", None, note="no compiler")]))
    assert lines[0] == "mlp ViT-B, batch 32, round 1, SM 1755 MHz"
    assert lines[2].startswith("* native_mlp")
    assert "3.00x" in lines[2]
    assert "no compiler" in lines[4]


def test_a_plan_has_minutes_and_sections() -> None:
    assert parse_plan("") == Plan()
    assert parse_plan("minutes=3") == Plan(3.0)
    assert parse_plan("minutes=all,sections=mlp+attention") == Plan(None, frozenset({"mlp", "attention"}))
    for wrong in ("minutes=x", "hours=12", "sections=mpl"):
        with pytest.raises(ValueError, match=wrong.partition("=")[2]):
            parse_plan(wrong)
    units = all_units(Plan(sections=frozenset({"cells"})), dry=False)
    assert units[:2] == ["library", "cells/ViTAE-T cell 1/32/r1"]


def test_a_step_takes_the_units_that_fit() -> None:
    step = Step("mlp", "mlp", ("a", "b", "c"), unit_seconds=50, unit_limit=150, start_seconds=6)
    assert step.within(156).units == ("a", "b", "c")
    assert step.within(120).units == ("a", "b")
    assert step.within(40).units == ()


def test_the_order_is_that_of_value() -> None:
    order = [step for stage in stages(dry=False) for step in stage]
    names = [step.name for step in order]
    by_value = [
        "library",
        "smoke native_linear",
        "precompile",
        "smoke triton",
        "ceilings",
        "mlp of ViT-B and ViT-S, round 1",
        "counters",
    ]
    assert sorted(by_value, key=names.index) == by_value
    assert (
        names.index("vit_base_patch16_224, round 1")
        < names.index("mlp of ViT-B and ViT-S, round 2")
        < names.index("tests")
    )
    units = [unit for step in order for unit in step.units]
    assert len(units) == len(set(units))
    assert names[-2:] == ["tests", "images"]
    # What times something is alone in its stage; compiling has ended before.
    timing = {"ceilings", "mlp", "attention", "forward", "cells", "counters"}
    assert all(len(stage) == 1 for stage in stages(dry=False) if stage[0].section in timing)
    assert {step.section for stage in stages(dry=True) for step in stage} == set(section_names())


def figure(value: float | None, *, turn: int = 1, note: str = "") -> dict[str, Any]:
    figures = {} if value is None else {"p50_ms": value}
    found = {"section": "served", "what": "ViT-B", "batch": 1, "candidate": "one JPEG", "round": turn, "passed": True}
    return {**found, "figures": figures, "note": note}


def test_a_bound_holds_in_both_rounds_for_the_worst_row() -> None:
    goal = "ViT-B over HTTP: ms, the median of one JPEG alone"
    met = said([figure(2.0), figure(2.9, turn=2)], goal)
    assert (met["measured"], met["met"], met["rounds"]) == (2.9, True, [2.0, 2.9])
    missed = said([figure(2.0), figure(3.5), figure(1.0, turn=2)], goal)
    assert (missed["measured"], missed["met"]) == (3.5, False)
    assert list(goal_lines([missed])) == [f"  missed    3.5  {goal}, wanted at most 3.0, rounds 3.5/1.0"]
    assert said([figure(2.0)], goal)["why"] == "round 2: no row of one JPEG"
    unanswered = said([figure(None, note="nobody answered"), figure(1.0, turn=2)], goal)
    assert (unanswered["met"], unanswered["why"]) == (None, "round 1: nobody answered")


def test_a_figure_that_is_no_number_measures_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "day.jsonl")
    for turn in (1, 2):
        journal.write({**figure(float("nan"), turn=turn), "kind": "row"})
    found = said(journal.read(), "ViT-B over HTTP: ms, the median of one JPEG alone")
    assert (found["met"], found["why"]) == (None, "round 1: p50_ms is not finite")


def test_a_share_is_wanted_at_least() -> None:
    rows = [{**figure(None, turn=turn), "candidate": "end to end"} for turn in (1, 2)]
    for row, share in zip(rows, (0.9, 0.79), strict=True):
        row["figures"] = {"of_the_limit": share}
    found = said(rows, "ViT-B over HTTP: share of its slowest part")
    assert (found["measured"], found["met"]) == (0.79, False)
    assert "wanted at least 0.8" in next(goal_lines([found]))


def test_rows_of_figures_are_lines_of_their_own() -> None:
    line, *rest = table([figure(2.0, note="alone")])
    assert (line, rest) == ("served ViT-B, round 1: one JPEG: p50_ms 2.0 (alone)", [])
