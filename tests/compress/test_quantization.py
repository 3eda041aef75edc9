"""The quantisation that a search goes on with."""

from types import SimpleNamespace
from typing import Any

import pytest

from milkweed.compress import quantize
from milkweed.compress.recipe import QuantizationConfig as Config
from milkweed.compress.recipe import Recipe
from milkweed.compress.selection import MeasuredCandidate, Target
from milkweed.models.progress import SILENT, Progress
from milkweed.models.report.frontier import ConfidenceInterval, Quality

OURS, INT8, SYMMETRIC, SMOOTH = Config(per_channel=True), Config(), Config(symmetric=True), Config(0.5)
Case = dict[Config | None, tuple[float, float]]


def measured(ms: float, kl: float) -> MeasuredCandidate:
    one = ConfidenceInterval(kl, kl, kl)
    return MeasuredCandidate("", Quality(250, one, one, one, None), {1: ms, 8: ms / 2}, 100, "")


@pytest.mark.parametrize(
    ("times", "chosen", "tried"),
    [
        ({None: (10, 0), INT8: (7, 0.005), SYMMETRIC: (8, 0.004)}, INT8, [INT8, SYMMETRIC]),
        ({None: (10, 0), INT8: (11, 0.005), SYMMETRIC: (8, 0.004)}, SYMMETRIC, [INT8, SYMMETRIC]),
        ({None: (6, 0), INT8: (7, 0.005), SYMMETRIC: (6.1, 0.004)}, None, [INT8, SYMMETRIC]),
        ({None: (10, 0), INT8: (7, 0.5), SYMMETRIC: (8, 0.4), SMOOTH: (9, 0.01)}, SMOOTH, [INT8, SYMMETRIC, SMOOTH]),
        ({None: (10, 0), INT8: (7, 0.5), SYMMETRIC: (7, 0.4), SMOOTH: (7, 0.6)}, SYMMETRIC, [INT8, SYMMETRIC, SMOOTH]),
        ({None: (10, 0), OURS: (3, 0.003), INT8: (7, 0.005), SYMMETRIC: (8, 0.004)}, OURS, [OURS, INT8, SYMMETRIC]),
        ({None: (10, 0), OURS: (3, 0.1), INT8: (7, 0.005), SYMMETRIC: (8, 0.004)}, INT8, [OURS, INT8, SYMMETRIC]),
        ({None: (10, 0)}, None, [INT8, SYMMETRIC, SMOOTH]),  # nothing could be quantised
    ],
)
def test_the_fastest_that_loses_little_is_taken(times: Case, chosen: Config | None, tried: list[Config]) -> None:
    asked, best = quantization_of(times, Target(speedup=2))
    assert (best, asked) == (chosen, tried)


def test_for_bytes_float_is_no_choice_however_fast() -> None:
    times: Case = {None: (1, 0), OURS: (7, 0.005), INT8: (8, 0.004)}
    assert quantization_of(times, Target(bytes=100)) == ([OURS, INT8, SYMMETRIC], INT8)


@pytest.mark.parametrize(("worst", "ignored"), [(0.09, "b"), (0.05, "bc"), (0.03, "bcde"), (0.0, None)])
def test_as_few_layers_as_bring_the_kl_down_stay_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch, worst: float, ignored: str | None
) -> None:
    gains = {"a": 0.0, "b": worst, "c": 0.04, "d": 0.01, "e": 0.005, "f": 0.001, "g": 0.0, "h": 0.0}
    monkeypatch.setattr(
        quantize,
        "_select_kl",
        lambda _, recipe: 0.1 - sum(gains[layer] for layer in recipe.quantization.ignored_layers),
    )
    told: list[int] = []
    evaluator: Any = SimpleNamespace(
        recipes=SimpleNamespace(layers_in_int8=lambda recipe: list(gains)),
        trials=SimpleNamespace(get=lambda name, make: make()),
        progress=Progress(step=lambda name, at, count: told.append(at)),
    )
    chosen = quantize.ignoring_some(evaluator, Recipe(), OURS)
    assert told == list(range(1, 9))
    assert chosen == (None if ignored is None else Config(per_channel=True, ignored_layers=tuple(sorted(ignored))))


def test_layers_stay_in_bfloat16_only_where_int8_loses_much(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Config(per_channel=True, ignored_layers=("fc1",))
    asked: list[Config] = []
    monkeypatch.setattr(quantize, "ignoring_some", lambda _, recipe, config: asked.append(config) or some)
    times: Case = {None: (10, 0), OURS: (3, 0.1), some: (4, 0.01), INT8: (7, 0.005), SYMMETRIC: (8, 0.004)}
    assert quantization_of(times, Target(speedup=2)) == ([OURS, some, INT8, SYMMETRIC], some)
    assert asked == [OURS]
    quantization_of({**times, OURS: (3, 0.01)}, Target(speedup=2))
    assert asked == [OURS]
    del times[OURS]  # it was refused: its golden answers are too far off
    assert quantization_of(times, Target(speedup=2), ours=True)[1] == some
    assert asked == [OURS, OURS]


def quantization_of(times: Case, target: Target, ours: bool = False) -> tuple[list[Config], Config | None]:
    """The quantisations that were measured, and the one that was chosen."""
    asked: list[Any] = []
    evaluator: Any = SimpleNamespace(
        job=SimpleNamespace(target=target),
        dense=measured(20, 0),
        ours=ours or OURS in times,
        recipes=SimpleNamespace(layers_in_int8=lambda recipe: []),
        progress=SILENT,
        measure=lambda recipe: asked.append(recipe.quantization),
        measurements=lambda recipe: [measured(*times[recipe.quantization])] if recipe.quantization in times else [],
    )
    kl = quantize.quantizations(evaluator, Recipe())
    return asked, quantize.best_quantization(evaluator, Recipe(), kl)
