"""Searches for a model on the frontier of accuracy and measured speed, from a dense model and photographs alone.

What costs least comes first: exact rewrites, quantisation, token schedules by their KL alone; then those that may be on
the Pareto frontier are exported and timed, a few of them quantised, and the chosen one is trained. KLs of tokens and
quantisation nearly add up, so their sum says which pairs are worth measuring.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import torch
from torch import nn

from ...inference.device import CPU, computes_in_bfloat16
from ...models.accounting import macs
from ...models.architectures.token_blocks import apply_token_plan, has_token_rules
from ...models.divergence import diverge
from ...models.layers.token_plan import TokenPlan
from ...models.onnx.quantize import int8_instructions
from ...models.programs.stored import ours_refusal
from ...models.progress import SILENT, Progress
from ...models.report.frontier import pareto_frontier
from .baseline import Baseline
from .distil import TRAINED_IMAGES, distil
from .evaluator import DENSE, CandidateEvaluator, SearchCandidate
from .job import SearchJob
from .pace import Pace
from .recipe import ENOUGH_KL, FULL_WIDTH, QUANTIZATIONS, QuantizationConfig, Recipe, mergings
from .selection import MeasuredCandidate, fastest, pick, speedup
from .trials import Trials
from .widths import smaller

SCREENED_IMAGES = 64
"""Token schedules are compared by so many held-out images; those that are left, by all."""

MEASURED, NARROWER, DISTILLED = 4, 2, 2
"""About so many token schedules are exported, quantised and timed; so many models that are narrow enough for the bytes;
so many are trained."""

TRAINED_KL = 0.02
"""Below this a training of minutes gains little: DeiT-Tiny went from .0111 to .0112, but from .1113 to .0854."""

MOST_KL = 0.3
"""Beyond this a model answers something else."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Args:
        dense: the dense model in float32, in the backend that it is fastest in.
        models: everything that was measured.
        chosen: the one that meets the target.
        work: the folder of what was measured, with which another search of the same model and images goes on.
    """

    dense: MeasuredCandidate
    models: Mapping[SearchCandidate, MeasuredCandidate]
    chosen: SearchCandidate
    notes: Sequence[str]
    seconds: float
    work: Path


class Search:
    """One search. Every result is in `trials`, so that one that was killed goes on.

    Raises:
        BackendError, BundleError, DataError, TrialsError: one line that says what is wrong.
    """

    def __init__(self, job: SearchJob, progress: Progress = SILENT) -> None:
        self.job, self.notes, self.started, self._tell = job, list[str](), time.perf_counter(), progress.note
        self.progress = replace(progress, note=self._note)
        self.baseline = Baseline(job, self.progress)
        self.trials = Trials(job.out.parent, self.baseline.belongs_to(job))
        if self.trials.resumed:
            progress.note(f"going on with what was measured in {self.trials.folder}")
        try:
            self.evaluator = CandidateEvaluator(self.baseline, job, self.trials, self.progress)
        except BaseException:
            self.trials.close()
            raise
        self._trained = DISTILLED if job.distil else 0  # so many models at most, in the end
        self.pace = Pace(progress, 2 + MEASURED + self._trained)
        image = self._image_seconds = min(self.evaluator.dense.ms.values()) / 1e3
        screening = len(self._plans(TokenPlan())) * SCREENED_IMAGES * image
        self.pace.expect_seconds(screening=screening, training=self._trained * TRAINED_IMAGES * image)

    def run(self) -> SearchResult:
        """Search, and choose.

        Raises:
            TargetError: no model meets the target; the message says what can be had.
        """
        exact = self._exact()
        self._measure(exact)
        kl = self._quantizations(exact)
        best = replace(exact, quantization=self._best_quantization(exact, kl))
        if self.job.target.bytes is not None:  # merging tokens saves none
            over = min((model.bytes for model in self._measurements(best)), default=0) - self.job.target.bytes
            if over > 0:
                self._narrower(best, over)
        else:
            cost = self._screened(best.tokens)
            self._schedules(cost, self._mergeable(best, kl, cost))
        self.pace.expect_seconds(screening=0.0)
        if self.job.distil:
            self._distilled()
        self.pace.note_others()
        chosen, seconds = self._pick(), time.perf_counter() - self.started
        return SearchResult(
            self.evaluator.dense, self.evaluator.measured, chosen, self.notes, seconds, self.trials.folder
        )

    def _exact(self) -> Recipe:
        """The rewrites that change nothing but rounding."""
        plan = TokenPlan(class_last=True)
        return Recipe(plan) if self._takes(plan, "class token last") else DENSE

    def _takes(self, plan: TokenPlan, what: str) -> bool:
        """Whether the model can compute these tokens; why not is noted, in one line where there are no rules at all."""
        model = self.baseline.fresh_model()
        try:
            apply_token_plan(model, plan)
        except ValueError as error:
            alone = f"{type(model).__name__}: compressed by NNCF's int8 alone, there are no rules to merge its tokens"
            note = f"without {what}: {error}" if has_token_rules(model) else alone
            if note not in self.notes:
                self.progress.note(note)
            return False
        return True

    def _measure(self, recipe: Recipe) -> None:
        known = len(self.trials.values)
        with self.pace.model(lambda: len(self.trials.values) > known):
            self.evaluator.measure(recipe)

    def _quantizations(self, exact: Recipe) -> dict[QuantizationConfig, float]:
        """KL by quantisation, of those that can be had."""
        kl: dict[QuantizationConfig, float] = {}
        for config in QUANTIZATIONS:
            if config.alpha is not None and min(kl.values(), default=inf) <= ENOUGH_KL:
                continue
            # For few bytes queries and keys may have to be narrower, which our kernels do not compute.
            if config.per_channel and (not self.evaluator.ours or self.job.target.bytes is not None):
                continue
            recipe = replace(exact, quantization=config)
            try:
                self._measure(recipe)
            except (ImportError, ValueError) as error:
                self.progress.note(f"without {config}: {error}")
                continue
            if measured := self._measurements(recipe):
                kl[config] = min(model.quality.kl.value for model in measured)
        if kl and int8_instructions() is None and not self.evaluator.ours:
            self.progress.note("this CPU has no products of int8, such as VNNI: int8 saves bytes, but hardly time")
        return kl

    def _best_quantization(self, exact: Recipe, kl: Mapping[QuantizationConfig, float]) -> QuantizationConfig | None:
        """The quantisation of every further model: the fastest that loses little, and None where float is faster."""
        if not kl or self.job.target.bytes is not None:
            return min(kl, key=lambda config: kl[config], default=None)
        close = [config for config in kl if kl[config] <= max(ENOUGH_KL, min(kl.values()))]
        recipes = {config: replace(exact, quantization=config) for config in (None, *close)}
        by_model = {model: config for config, recipe in recipes.items() for model in self._measurements(recipe)}
        return by_model[fastest(list(by_model), self.evaluator.dense)]

    def _mergeable(self, best: Recipe, kl: Mapping[QuantizationConfig, float], plans: Collection[TokenPlan]) -> Recipe:
        """The best recipe whose kernels can merge tokens so: ours do not in every model."""
        if not plans or best.quantization is None or not best.quantization.per_channel:
            return best
        refusal = ours_refusal(self.evaluator.model(Recipe(next(iter(plans)))), self.baseline.size)
        if refusal is None:
            return best
        self.progress.note(f"tokens merge without {best.quantization}: {refusal}")
        others = {config: value for config, value in kl.items() if not config.per_channel}
        return replace(best, quantization=self._best_quantization(best.floating, others))

    def _plans(self, tokens: TokenPlan) -> list[TokenPlan]:
        """The token schedules that are screened."""
        return [TokenPlan(merging, tokens.class_last) for merging in mergings(self.baseline.model)]

    def _screened(self, tokens: TokenPlan) -> dict[TokenPlan, int]:
        """Multiply-accumulates of token schedules that no other one beats in KL with as many, the least KL first."""
        plans = self._plans(tokens)
        if not plans or not self._takes(plans[0], "token merging"):
            return {}
        kl: dict[TokenPlan, float] = {}
        cost: dict[TokenPlan, int] = {}
        for at, plan in enumerate(plans):
            model = self.evaluator.model(Recipe(plan))
            cost[plan] = macs(model, self.baseline.size).total
            kl[plan] = self._kl(Recipe(plan), model)
            self.progress.step("token schedules", at + 1, len(plans))
        kept: list[TokenPlan] = []
        for plan in sorted(plans, key=lambda plan: (cost[plan], kl[plan])):
            if kl[plan] < min([MOST_KL, *(kl[earlier] for earlier in kept)]):
                kept.append(plan)
        return {plan: cost[plan] for plan in reversed(kept)}

    def _kl(self, recipe: Recipe, model: nn.Module | None = None) -> float:
        """KL of a model without quantisation, which is made where none is given, by some of the held-out images."""

        def measured() -> float:
            dtype = torch.bfloat16 if computes_in_bfloat16(CPU) else torch.float32
            batches = self.baseline.held_out.pixels[:SCREENED_IMAGES].to(dtype).split(32)
            compressed = model or self.evaluator.model(recipe)
            return diverge(compressed.to(dtype), batches, self.baseline.dense[:SCREENED_IMAGES]).kl

        return float(self.trials.get(f"screened/{recipe.file}", measured))

    def _schedules(self, cost: Mapping[TokenPlan, int], best: Recipe) -> None:
        """Measure those schedules that find the first one which is fast enough, or the last one that loses little.

        Args:
            cost: multiply-accumulates of each, the least KL and the most operations first.
        """
        plans, first, target = list(cost), 0, self._target_speedup()
        if target is not None and plans:  # as fast as their operations say at best
            whole, now = macs(self.evaluator.model(best), self.baseline.size).total, self._speedup(best)
            first = min(sum(now * whole / cost[plan] < target for plan in plans), len(plans) - 1)
        end = len(plans)
        while first < end:
            self.pace.expect((end - first).bit_length() + self._trained)
            middle = (first + end) // 2
            recipe = replace(best, tokens=plans[middle])
            self._measure(recipe)
            if self._merges_enough(recipe):
                end = middle
            else:
                first = middle + 1

    def _merges_enough(self, recipe: Recipe) -> bool:
        """Whether no schedule that merges more is of interest: this one is fast enough, or loses too much."""
        if (target := self._target_speedup()) is not None:
            return self._speedup(recipe) >= target
        assert self.job.target.drop is not None
        return not any(model.quality.change.low >= -self.job.target.drop for model in self._measurements(recipe))

    def _narrower(self, best: Recipe, over: int) -> None:
        """Measure models whose layers are so narrow that their file has `over` bytes less."""
        try:
            ratios = smaller(self.baseline.model, over, 1 if best.quantization else 4)
            recipes = [replace(best, widths=widths) for widths in ratios]
            for at, recipe in enumerate(recipes, 1):
                self._kl(recipe.plain)
                self.progress.step("narrower layers", at, len(recipes))
        except ValueError as error:
            return self.progress.note(f"without narrower layers: {error}")
        self.pace.expect(min(len(recipes), NARROWER) + self._trained)
        for recipe in sorted(recipes, key=lambda recipe: self._kl(recipe.plain))[:NARROWER]:
            self._measure(recipe)

    def _speedup(self, recipe: Recipe) -> float:
        """The speedup of a recipe over the dense model, in its fastest backend."""
        return max((speedup(model, self.evaluator.dense) for model in self._measurements(recipe)), default=0.0)

    def _measurements(self, recipe: Recipe) -> list[MeasuredCandidate]:
        return [measured for candidate, measured in self.evaluator.measured.items() if candidate.recipe == recipe]

    def _target_speedup(self) -> float | None:
        """The speedup that is asked for; None where none is."""
        target = self.job.target
        if target.ms is not None:
            return max(self.evaluator.dense.ms.values()) / target.ms
        return target.speedup

    def _distilled(self) -> None:
        """Train the model that would be chosen and its faster neighbour on the Pareto frontier, and measure them.

        Only what merging or narrower layers took away is learnt again: rounding to 8 bits leaves too little to learn.
        """
        ordered = pareto_frontier(list(self.evaluator.measured.values()), self.job.batches[0])
        chosen = self.evaluator.measured[self._pick()]
        place = ordered.index(chosen) if chosen in ordered else 0
        by_model = {measured: candidate.recipe for candidate, measured in self.evaluator.measured.items()}
        near = ordered[max(0, place - DISTILLED + 1) : place + 1]
        recipes = [by_model[model] for model in near if model.quality.kl.value > TRAINED_KL]
        left = list(dict.fromkeys(recipe for recipe in recipes if recipe.tokens.merging or recipe.widths != FULL_WIDTH))
        self.pace.expect(len(left))
        while left:
            trained = replace(left.pop(0), distilled=True)
            if not self.evaluator.weights_file(trained).exists():
                distil(self.evaluator, trained, self.progress)
            self.pace.expect_seconds(training=len(left) * TRAINED_IMAGES * self._image_seconds)
            self._measure(trained)

    def _pick(self) -> SearchCandidate:
        by_model = {measured: candidate for candidate, measured in self.evaluator.measured.items()}
        return by_model[pick(list(by_model), self.evaluator.dense, self.job.target)]

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._tell(text)
