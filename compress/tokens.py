"""Token schedules of a search: those that are tried, and those that lose least for their operations."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import nn

from ..inference.device import CPU, computes_in_bfloat16
from ..models.accounting import macs
from ..models.architectures.token_blocks import reads_class_token, token_depth
from ..models.divergence import diverge
from ..models.layers.token_plan import TokenMerging, TokenPlan
from .measure import CandidateEvaluator
from .recipe import Recipe

MERGED_SHARES, EVERY, PROTECT = (0.16, 0.22, 0.28, 0.34, 0.4), (2, 3, 4), (0.1, 0.2)
"""Token schedules that are tried. Few large merges take less time than many small ones: at one image a time, merging in
every block gained nothing. Keeping what the class token attends to took a third off the KL wherever it was measured;
which of the two weights is nearer depends on the schedule."""

MOST_KL = 0.3
"""Beyond this a model answers something else."""


def mergings(model: nn.Module) -> Iterator[TokenMerging]:
    """Yield the schedules that are tried: from a quarter and a third of the depth on, since early merges cost most."""
    depth, class_token = token_depth(model), reads_class_token(model)
    for start in sorted({max(1, depth // 4), max(1, depth // 3)}):
        for every in EVERY:
            for share in MERGED_SHARES:
                for protect in PROTECT if class_token else (0.0,):
                    yield TokenMerging(start, every, share, protect)


def screened_schedules(evaluator: CandidateEvaluator, plans: list[TokenPlan]) -> dict[TokenPlan, int]:
    """Return multiply-accumulates of those schedules that no other beats in KL with as many, the least KL first."""
    size, kl, cost = evaluator.baseline.size, dict[TokenPlan, float](), dict[TokenPlan, int]()
    for at, plan in enumerate(plans):
        model = evaluator.model(Recipe(plan))
        cost[plan] = macs(model, size).total
        kl[plan] = screened_kl(evaluator, Recipe(plan), model)
        evaluator.progress.step("token schedules", at + 1, len(plans))
    kept: list[TokenPlan] = []
    for plan in sorted(plans, key=lambda plan: (cost[plan], kl[plan])):
        if kl[plan] < min([MOST_KL, *(kl[earlier] for earlier in kept)]):
            kept.append(plan)
    return {plan: cost[plan] for plan in reversed(kept)}


def screened_kl(evaluator: CandidateEvaluator, recipe: Recipe, model: nn.Module | None = None) -> float:
    """Return the KL of a recipe's model, without quantisation or training, on some images that nothing is judged by.

    Args:
        model: the model, where it is made already.
    """

    def measured() -> float:
        dtype = torch.bfloat16 if computes_in_bfloat16(CPU) else torch.float32
        select, dense = evaluator.baseline.select, evaluator.baseline.dense_on_select
        compressed = evaluator.model(recipe) if model is None else model
        return diverge(compressed.to(dtype), select.to(dtype).split(32), dense).kl

    return float(evaluator.trials.get(f"screened/{recipe.plain.file}", measured))


def measure_schedules(evaluator: CandidateEvaluator, cost: Mapping[TokenPlan, int], best: Recipe, later: int) -> None:
    """Measure those schedules that find the first one which is fast enough, or the last one that loses little.

    Args:
        cost: multiply-accumulates of each, the least KL and the most operations first.
        best: what is done beside merging.
        later: how many models will be measured behind them.
    """
    plans, first, target = list(cost), 0, evaluator.target_speedup
    if target is not None and plans:  # as fast as their operations say at best
        whole, now = macs(evaluator.model(best), evaluator.baseline.size).total, evaluator.speedup(best)
        first = min(sum(now * whole / cost[plan] < target for plan in plans), len(plans) - 1)
    end = len(plans)
    while first < end:
        evaluator.pace.expect((end - first).bit_length() + later)
        middle = (first + end) // 2
        recipe = replace(best, tokens=plans[middle])
        evaluator.measure(recipe)
        if _merges_enough(evaluator, recipe):
            end = middle
        else:
            first = middle + 1


def _merges_enough(evaluator: CandidateEvaluator, recipe: Recipe) -> bool:
    """Whether no schedule that merges more is of interest: this one is fast enough, or loses too much."""
    if (target := evaluator.target_speedup) is not None:
        return evaluator.speedup(recipe) >= target
    drop = evaluator.job.target.drop
    assert drop is not None
    return not any(model.quality.change.low >= -drop for model in evaluator.measurements(recipe))
