"""The quantisation that a search goes on with."""

from types import SimpleNamespace
from typing import Any

import pytest

from milkweed.compress import quantize
from milkweed.compress.recipe import QuantizationConfig as Config
from milkweed.compress.recipe import Recipe
from milkweed.compress.selection import MeasuredCandidate, Target
from milkweed.models.progress import SILENT
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


def test_for_bytes_float_is_no_choice_however_fast_and_neither_are_our_kernels() -> None:
    times: Case = {None: (1, 0), OURS: (1, 0.001), INT8: (7, 0.005)}
    assert quantization_of(times, Target(bytes=100)) == ([INT8, SYMMETRIC], INT8)


def quantization_of(times: Case, target: Target) -> tuple[list[Config], Config | None]:
    """The quantisations that were measured, and the one that was chosen."""
    asked: list[Any] = []
    evaluator: Any = SimpleNamespace(
        job=SimpleNamespace(target=target),
        dense=measured(20, 0),
        ours=OURS in times,
        progress=SILENT,
        measure=lambda recipe: asked.append(recipe.quantization),
        measurements=lambda recipe: [measured(*times[recipe.quantization])] if recipe.quantization in times else [],
    )
    kl = quantize.quantizations(evaluator, Recipe())
    return asked, quantize.best_quantization(evaluator, Recipe(), kl)
