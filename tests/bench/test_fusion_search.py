"""The fusion search: both searches on planted costs, regret as it is defined, the command."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from milkweed.bench import fusion_search as search
from milkweed.kernels.engines.registry import all_engines
from milkweed.kernels.operators import Problem
from milkweed.kernels.tuning.plan import Plan, Span, every_span, spans_of

TINY = search.Shape(dim=16, hidden_dim=32, head_dim=8, tokens=3, batch=1, dtype="float32")


pytestmark = pytest.mark.usefixtures("one_thread")


class Planted(search.Bench):
    """Segments cost what was drawn, chains the sum."""

    def __init__(self) -> None:
        problem = Problem(torch.device("cpu"), torch.float32, TINY.batch, TINY.tokens)
        super().__init__(search.sixteen_operators(TINY), problem, all_engines())
        draw = np.random.default_rng(0)
        self.costs = {span: float(draw.uniform(1, 2)) for span in every_span(len(self.chain))}

    def segment_seconds(self) -> dict[Span, float]:
        return self.costs

    def seconds(self, plans: Iterable[Plan], rounds: int = 1) -> dict[Plan, float]:
        return {plan: sum(self.costs[span] for span in plan.spans) for plan in plans}


def test_the_chain_has_sixteen_operators_and_runs_however_it_is_cut() -> None:
    problem = Problem(torch.device("cpu"), torch.float32, TINY.batch, TINY.tokens)
    bench = search.Bench(search.sixteen_operators(TINY), problem, all_engines())
    assert len(bench.chain) == 16
    bench.measure = lambda call: float(call().double().square().mean())
    values = [*bench.seconds(map(bench.plan, (0, 0b111111111111111, 0b010010100101111)), rounds=3).values()]
    assert values == pytest.approx([values[0]] * 3, rel=1e-4)


def test_segments_and_strings_are_timed_in_turns_by_their_least() -> None:
    problem = Problem(torch.device("cpu"), torch.float32, TINY.batch, TINY.tokens)
    bench = search.Bench(search.sixteen_operators(TINY), problem, all_engines())
    calls: list[str] = []

    def measure(call: object) -> float:
        calls.append(str(call))
        return float(len(calls))

    bench.measure = measure
    seconds = bench.segment_seconds()
    assert len(calls) == search.ROUNDS * len(seconds) == search.ROUNDS * 136
    assert calls[:136] == calls[136:272][::-1] == calls[272:]
    assert seconds[0, 1] == 136.0  # last of the first round, first of the second


def test_the_shortest_path_finds_the_best_of_all_strings() -> None:
    bench = Planted()
    measurements, plan = search.by_segments(bench)
    assert measurements == 136 + 3
    least = min(sum(bench.costs[span] for span in spans_of(cuts, 16)) for cuts in range(1 << 15))
    assert sum(bench.costs[span] for span in plan.spans) == pytest.approx(least)


def test_the_trees_choice_is_the_best_of_the_three_best_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Planted()
    predicted = np.full(1 << 15, 9.0)
    predicted[[5, 77, 1234, 9]] = [1, 2, 3, 4]
    monkeypatch.setattr(search, "predict_all", lambda sample, places: predicted)
    measurements, plan = search.by_trees(bench, [(1, 1.0)] * 10)
    assert measurements == 13
    seconds = bench.seconds(map(bench.plan, (5, 77, 1234)))
    assert plan == min(seconds, key=seconds.__getitem__)


def test_trees_learn_which_cut_is_dear() -> None:
    pytest.importorskip("xgboost", reason="the extra `fusion` is not installed")
    sample = [(cuts, 2.0 if cuts & 4 else 1.0) for cuts in range(64)]
    predicted = search.predict_all(sample, 6)
    assert predicted.shape == (64,)
    assert all((predicted[cuts] > np.log(1.5)) == bool(cuts & 4) for cuts in range(64))


def test_without_xgboost_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    assert search.main(["--device", "cpu", "--out", str(tmp_path / "out.json")]) == 1
    assert "pip install 'milkweed[fusion]'" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_the_command_writes_rows_with_regret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def predict_all(sample: Sequence[tuple[int, float]], places: int) -> np.ndarray:
        return np.arange(1 << places)

    monkeypatch.setattr(search, "_xgboost", lambda: SimpleNamespace(__version__="0"))
    monkeypatch.setattr(search, "predict_all", predict_all)
    monkeypatch.setattr(search, "processor_seconds", lambda call: float(len(str(call))))  # fewer segments are faster
    monkeypatch.setattr(search, "SHAPES", {"cpu": TINY})
    monkeypatch.setattr(search, "BUDGETS", (4, 8))
    monkeypatch.setattr(search, "POOL", 10)
    out = tmp_path / "results" / "out.json"
    assert search.main(["--device", "cpu", "--seeds", "2", "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["settings"] == {"device": "cpu", **vars(TINY), "threads": 1, "seeds": 2, "clock": "processor time"}
    rows = document["rows"]
    assert [row["search"] for row in rows[:3]] == [
        "segments, shortest path",
        "tuner: segments, every engine",
        "untuned: nothing measured",
    ]
    assert [row["search"] for row in rows[3:]] == ["XGBoost on 4 strings", "best of 4 strings"] * 2 + [
        "XGBoost on 8 strings",
        "best of 8 strings",
    ] * 2
    assert {row["measurements"] for row in rows if row["search"] == "XGBoost on 4 strings"} == {7}
    least = min(row["seconds"] for row in rows)
    assert [row["regret"] for row in rows] == pytest.approx([row["seconds"] / least - 1 for row in rows])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + 3 + 4
