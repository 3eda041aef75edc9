"""Quantisations of a search: those that are tried, and the one that every further model has."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from ..models.layers.token_plan import TokenPlan
from ..models.onnx.quantize import int8_instructions
from ..models.programs.stored import ours_refusal
from .measure import CandidateEvaluator
from .recipe import QuantizationConfig, Recipe
from .selection import fastest

ENOUGH_KL = 0.02
"""Rounding to 8 bits that loses less needs no SmoothQuant, which takes minutes."""

QUANTIZATIONS = (
    QuantizationConfig(per_channel=True),
    QuantizationConfig(),
    QuantizationConfig(symmetric=True),
    QuantizationConfig(0.5),
)
"""The quantisations in the order in which they are tried. DeiT-Tiny's KL was .005 without SmoothQuant, .018 with."""

KLs = Mapping[QuantizationConfig, float]


def quantizations(evaluator: CandidateEvaluator, exact: Recipe) -> KLs:
    """Measure the quantisations that can be had, and return their KLs."""
    kl: dict[QuantizationConfig, float] = {}
    for config in QUANTIZATIONS:
        if config.alpha is not None and min(kl.values(), default=inf) <= ENOUGH_KL:
            continue
        # For few bytes queries and keys may have to be narrower, which our kernels do not compute.
        if config.per_channel and (not evaluator.ours or evaluator.job.target.bytes is not None):
            continue
        recipe = replace(exact, quantization=config)
        try:
            evaluator.measure(recipe)
        except (ImportError, ValueError) as error:
            evaluator.progress.note(f"without {config}: {error}")
            continue
        if measured := evaluator.measurements(recipe):
            kl[config] = min(model.quality.kl.value for model in measured)
    if kl and int8_instructions() is None and not evaluator.ours:
        evaluator.progress.note("this CPU has no products of int8, such as VNNI: int8 saves bytes, but hardly time")
    return kl


def best_quantization(evaluator: CandidateEvaluator, exact: Recipe, kl: KLs) -> QuantizationConfig | None:
    """Return the quantisation of every further model: the fastest that loses little; None where float is faster."""
    if not kl or evaluator.job.target.bytes is not None:
        return min(kl, key=lambda config: kl[config], default=None)
    close = [config for config in kl if kl[config] <= max(ENOUGH_KL, min(kl.values()))]
    recipes = {config: replace(exact, quantization=config) for config in (None, *close)}
    by_model = {model: config for config, recipe in recipes.items() for model in evaluator.measurements(recipe)}
    return by_model[fastest(list(by_model), evaluator.dense)]


def mergeable(evaluator: CandidateEvaluator, best: Recipe, kl: KLs, plan: TokenPlan) -> Recipe:
    """Return the best recipe whose kernels can merge tokens so: ours do not in every model."""
    if best.quantization is None or not best.quantization.per_channel:
        return best
    refusal = ours_refusal(evaluator.model(Recipe(plan)), evaluator.baseline.size)
    if refusal is None:
        return best
    evaluator.progress.note(f"tokens merge without {best.quantization}: {refusal}")
    others = {config: value for config, value in kl.items() if not config.per_channel}
    return replace(best, quantization=best_quantization(evaluator, best.floating, others))
