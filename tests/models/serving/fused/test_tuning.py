"""How plans are chosen and reported: measured once, remembered, or not at all; a wrong kernel is never used."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from milkweed.kernels.chain_ir import Add, ChainOp, Dense, Gelu, LayerNorm, Problem
from milkweed.kernels.impls.base import OTHER_KIND, Runner
from milkweed.kernels.impls.dense import DenseImpl
from milkweed.kernels.impls.torch_ops import EagerImpl
from milkweed.kernels.tuning.cache import TuningCache
from milkweed.kernels.tuning.chain import Chain
from milkweed.models.serving.fused.alternatives import Alternative, Part, choose
from milkweed.models.serving.fused.report import Fallback, FusionReport, PartReport, PlanReport
from milkweed.models.serving.fused.tuning import FreshCache, Tuning, choose_chain, open_cache, refusals

from ...small_models import CPU, NATIVE

PROBLEM = Problem(CPU, torch.float32, 2, 3)


def chain() -> Chain:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    fc1, fc2 = Dense(normal(8, 4), normal(8)), Dense(normal(4, 8), normal(4))
    return Chain([LayerNorm(normal(4), normal(4), 1e-6), fc1, Gelu(), fc2, Add()])


class Timer:
    """Counts what it is asked to measure."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, call: Callable[[], object]) -> float:
        self.count += 1
        return 1e-3 / self.count


def never(_: Callable[[], object]) -> float:
    raise AssertionError("something was measured")


def tuning(**more: object) -> Tuning:
    return replace(Tuning(impls=[DenseImpl(), EagerImpl()]), **more)


class Wrong:
    """An impl that says it runs whole chains, and gives zeros."""

    name = "wrong"

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        return None if len(segment) == 5 else OTHER_KIND

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        return Runner(lambda x, _: torch.zeros_like(x))


def test_auto_measures_once_and_remembers() -> None:
    cache, timer, one = TuningCache(), Timer(), chain()
    first = choose_chain(one, PROBLEM, tuning(cache=cache, measure=timer))
    assert first.source == "measured"
    assert timer.count > 5
    again = choose_chain(one, PROBLEM, tuning(cache=cache, measure=never))
    assert (again.source, again.way.plan, again.seconds) == ("cached", first.way.plan, first.seconds)


def test_off_measures_nothing_and_takes_what_is_remembered() -> None:
    cache, one = TuningCache(), chain()
    before = choose_chain(one, PROBLEM, tuning(mode="off", cache=cache, measure=never))
    assert (before.source, before.seconds) == ("untuned", None)
    measured = choose_chain(one, PROBLEM, tuning(cache=cache, measure=Timer()))
    after = choose_chain(one, PROBLEM, tuning(mode="off", cache=cache, measure=never))
    assert (after.source, after.way.plan, after.seconds) == ("cached", measured.way.plan, measured.seconds)


@pytest.mark.parametrize("entry", [{}, {"cuts": "0b", "engines": [], "seconds": 1.0}, {"seconds": "x"}, 3])
def test_off_ignores_bad_entries_of_a_cache(entry: object) -> None:
    cache, one = TuningCache(), chain()
    choose_chain(one, PROBLEM, tuning(cache=cache, measure=Timer()))
    assert cache._own is not None
    for key in cache._own:
        cache._own[key] = entry
    assert choose_chain(one, PROBLEM, tuning(mode="off", cache=cache)).source == "untuned"


def test_force_measures_once_a_start_and_writes_the_cache(tmp_path: Path) -> None:
    one = chain()
    choose_chain(one, PROBLEM, tuning(cache=open_cache(CPU, "auto", tmp_path), measure=Timer()))
    forced = open_cache(CPU, "force", tmp_path)
    assert isinstance(forced, FreshCache)
    timer = Timer()
    first = choose_chain(one, PROBLEM, tuning(mode="force", cache=forced, measure=timer))
    assert (first.source, timer.count > 5) == ("measured", True)
    assert choose_chain(one, PROBLEM, tuning(mode="force", cache=forced, measure=never)).source == "cached"
    later = choose_chain(one, PROBLEM, tuning(cache=open_cache(CPU, "auto", tmp_path), measure=never))
    assert later.seconds == first.seconds


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_an_engine_that_is_wrong_is_not_used(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        one = tuning(mode=mode, impls=[Wrong(), DenseImpl(), EagerImpl()], measure=Timer())
        chosen = choose_chain(chain(), PROBLEM, one)
    assert "wrong" not in chosen.way.plan.impls
    if mode == "auto":
        assert len(chosen.discarded) == 1
        assert chosen.discarded[0].startswith("wrong on norm+dense+gelu+dense+add: relative error")


def test_refusals_name_engines_that_run_nothing_and_leave_out_those_of_other_kinds() -> None:
    class Refusing(Wrong):
        def __init__(self, name: str, reason: str | None) -> None:
            self.name, self._reason = name, reason

        def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
            return self._reason if len(segment) == 2 else OTHER_KIND

    impls = [
        *(Refusing("tiled:0", "too wide"), Refusing("tiled:1", "too wide"), Refusing("half:0", "too wide")),
        *(Refusing("half:1", None), Refusing("other", OTHER_KIND), EagerImpl()),
    ]
    assert refusals(chain(), PROBLEM, impls) == {"tiled": "too wide"}


class Doubling(Part):
    """A part that doubles, in ways that are right, wrong, or fail."""

    kind = "branch"

    def __init__(self, *ways: Alternative) -> None:
        super().__init__(Twice(), NATIVE)
        self._ways = list(ways)

    def describe(self) -> str:
        return "doubling(4)"

    def refusal(self, problem: Problem) -> str | None:
        return None

    def native_ways(self, problem: Problem) -> list[Alternative]:
        return self._ways

    def input_widths(self) -> tuple[int, ...]:
        return (4,)


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def failing(_: Tensor) -> Tensor:
    raise RuntimeError("no such tile\nand a trace")


RIGHT = Alternative("right", lambda x: 2 * x)
WRONG = Alternative("wrong", lambda x: 2.1 * x)
NAN = Alternative("nan", lambda x: x * float("nan"))
SHAPE = Alternative("shape", lambda x: 2 * x[:1])
FAILING = Alternative("failing", failing)


def test_parts_are_measured_and_remembered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = TuningCache()

    def slow_torch(call: Callable[[], object]) -> float:
        return 2e-3 if str(call) == "branch torch" else 1e-3

    first = choose(Doubling(RIGHT), PROBLEM, tuning(cache=cache, measure=slow_torch))
    assert (first.way.name, first.source, first.seconds) == ("right", "measured", 1e-3)
    monkeypatch.setattr(torch, "__version__", "9")  # a preset is found under another PyTorch
    again = choose(Doubling(RIGHT), PROBLEM, tuning(cache=cache, measure=never))
    assert (again.way.name, again.source) == ("right", "cached")
    # Other sources of the kernels are another measurement.
    other = choose(Doubling(replace(RIGHT, build_id="new")), PROBLEM, tuning(cache=cache, measure=Timer()))
    assert other.source == "measured"


def test_a_part_that_torch_runs_faster_runs_in_torch() -> None:
    fast_torch = {"branch torch": 1e-3}
    chosen = choose(Doubling(RIGHT), PROBLEM, tuning(measure=lambda call: fast_torch.get(str(call), 1.0)))
    assert chosen.way.name == "torch"


@pytest.mark.parametrize("bad", [WRONG, NAN, SHAPE, FAILING], ids=lambda way: way.name)
def test_a_way_that_is_wrong_or_fails_is_left_out_and_reported(
    bad: Alternative, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        chosen = choose(Doubling(bad), PROBLEM, tuning(mode="off", measure=never))
    assert (chosen.way.name, chosen.source) == ("torch", "untuned")
    assert len(chosen.discarded) == 1
    assert chosen.discarded[0].startswith(f"{bad.name}: ")
    assert "\n" not in chosen.discarded[0]
    assert bad.name in caplog.text


def test_untuned_parts_take_the_first_right_way() -> None:
    assert choose(Doubling(WRONG, RIGHT), PROBLEM, tuning(mode="off")).way.name == "right"
    assert choose(Doubling(), PROBLEM, tuning(measure=never)).way.name == "torch"


def test_report_is_plain_data_and_a_line() -> None:
    plans = (PlanReport(1, "0b1", ("a", "b"), None, "untuned"), PlanReport(8, "0b0", ("c",), 12.5, "measured"))
    report = FusionReport(
        "not built",
        (
            PartReport("mlp", "norm(4)+dense(4>8)", 17, 12, plans, {"d": "too wide"}),
            PartReport("mlp", "norm(8)+dense(8>8)", 17, 2, plans[:1], {}),
            PartReport("branch", "branch(4>8/2)", 16, 2, plans[1:], {}),
        ),
        (Fallback("library", "not built"), Fallback("engine", "e: relative error 0.1")),
        1.5,
    )
    assert report.summary == "fused: mlp c, a+b; branch c; 2 fallbacks"
    assert report.fallback_counts == {"library": 1, "block": 0, "engine": 1}
    plain = json.loads(json.dumps(report.as_json()))
    assert plain["parts"][0]["plans"][1] == {
        "batch": 8,
        "cuts": "0b0",
        "engines": ["c"],
        "microseconds": 12.5,
        "source": "measured",
    }
    assert plain["fallbacks"][0] == {"kind": "library", "reason": "not built"}
