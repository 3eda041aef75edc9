"""Quantisations of a search: those that are tried, and the one that every further model has."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from math import inf

from ..inference.backend import BackendError, Candidate
from ..models.divergence import divergence
from ..models.layers.token_plan import TokenPlan
from ..models.onnx.quantize import int8_instructions
from ..models.programs.stored import ours_refusal
from .apply import SearchCandidate
from .data import BATCH
from .job import OURS
from .measure import CandidateEvaluator
from .quality import log_probabilities
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
        if config.per_channel and not evaluator.ours:
            continue
        kl |= _measured(evaluator, exact, config)
        if config.per_channel and kl.get(config, inf) > ENOUGH_KL:  # or so far off that no bundle may hold it
            ignoring = ignoring_some(evaluator, exact, config)
            kl |= {} if ignoring is None else _measured(evaluator, exact, ignoring)
    if kl and int8_instructions() is None and not evaluator.ours:
        evaluator.progress.note("this CPU has no products of int8, such as VNNI: int8 saves bytes, but hardly time")
    return kl


def _measured(evaluator: CandidateEvaluator, exact: Recipe, config: QuantizationConfig) -> KLs:
    """The KL of a quantisation; nothing where it cannot be had, which is noted."""
    recipe = replace(exact, quantization=config)
    try:
        evaluator.measure(recipe)
    except (ImportError, ValueError) as error:
        evaluator.progress.note(f"without {config}: {error}")
        return {}
    measured = evaluator.measurements(recipe)
    return {config: min(model.quality.kl.value for model in measured)} if measured else {}


def ignoring_some(
    evaluator: CandidateEvaluator, exact: Recipe, config: QuantizationConfig
) -> QuantizationConfig | None:
    """Leave in bfloat16 the layers that lose most: as few as bring the KL down to ENOUGH_KL; None where half do not.

    Each layer is tried alone, on the images that select; then 1, 2, 4, ... of those that gain most.
    """

    def screened(layers: Sequence[str]) -> float:
        recipe = replace(exact, quantization=replace(config, ignored_layers=tuple(sorted(layers))))
        return float(evaluator.trials.get(f"screened/{recipe.file}", lambda: _select_kl(evaluator, recipe)))

    try:
        layers, alone = evaluator.recipes.layers_in_int8(replace(exact, quantization=config)), dict[str, float]()
    except BackendError:  # it is noted already
        return None
    for at, layer in enumerate(layers, 1):
        alone[layer] = screened([layer])
        evaluator.progress.step("layers in bfloat16", at, len(layers))
    ordered, count = sorted(layers, key=lambda layer: alone[layer]), 1
    while 2 * count <= len(layers):
        if screened(ordered[:count]) <= ENOUGH_KL:
            return replace(config, ignored_layers=tuple(sorted(ordered[:count])))
        count *= 2
    return None


def _select_kl(evaluator: CandidateEvaluator, recipe: Recipe) -> float:
    """The KL on the images that select, which judge nothing."""
    candidate, baseline = SearchCandidate(recipe, Candidate(OURS, "int8")), evaluator.baseline
    with closing(evaluator.recipes.forward(candidate, evaluator.recipes.program(candidate))) as forward:
        answers, _ = log_probabilities(forward, baseline.select.split(BATCH))
    return divergence(baseline.dense_on_select, answers).kl


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
