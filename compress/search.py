"""Searches for a model on the frontier of accuracy and measured speed, from a dense model and photographs alone.

What costs least comes first: exact rewrites, quantisation, token schedules by their KL alone, structures by the clock;
then those that may be on the Pareto frontier are made and measured, and what may be chosen is trained. KLs of tokens
and quantisation nearly add up, so their sum says which pairs are worth measuring.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..models.architectures.token_blocks import apply_token_plan, has_token_rules
from ..models.layers.token_plan import TokenPlan
from ..models.progress import SILENT, Progress
from ..models.report.frontier import pareto_frontier
from .apply import SearchCandidate
from .data import SCREENED_IMAGES, Baseline
from .distill.distil import distil, planned_steps, step_seconds, training_seconds, with_steps
from .job import CompressJob
from .journal import Trials
from .measure import DENSE, CandidateEvaluator
from .pace import Pace
from .quantize import best_quantization, mergeable, quantizations
from .recipe import FULL_WIDTH, DistillationConfig, QuantizationConfig, Recipe, RecipeError
from .selection import MeasuredCandidate, TargetError, pick, speedup
from .structure.propose import smaller_by_structure, structured
from .tokens import measure_schedules, mergings, screened_kl, screened_schedules
from .widths.ratios import smaller

MEASURED, NARROWER, DISTILLED = 4, 2, 2
"""About so many token schedules are exported, quantised and timed; so many models that are narrow enough for the bytes;
so many are trained."""

TRAINED_KL = 0.02
"""Below this a training of minutes gains little: DeiT-Tiny went from .0111 to .0112, but from .1113 to .0854."""


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

    def __init__(self, job: CompressJob, progress: Progress = SILENT) -> None:
        self.job, self.notes, self.started, self._tell = job, list[str](), time.perf_counter(), progress.note
        self.progress = replace(progress, note=self._note)
        self.baseline = Baseline(job, self.progress)
        if self.baseline.config.embeds:
            self._note(
                "the model has no classes: the image nearest to an image is its answer, and points are of cosines"
            )
        self.trials = Trials(job.out.parent, self.baseline.belongs_to(job))
        if self.trials.resumed:
            progress.note(f"going on with what was measured in {self.trials.folder}")
        self._trained = 0 if job.minutes == 0 else DISTILLED  # so many models at most, in the end
        self.pace = Pace(progress, 2 if job.recipe else 3 + MEASURED + self._trained)
        try:
            self.evaluator = CandidateEvaluator(self.baseline, job, self.trials, self.pace, self.progress)
        except BaseException:
            self.trials.close()
            raise
        image_seconds = self.evaluator.image_seconds
        if job.recipe is not None:
            self.pace.expect_seconds(training=training_seconds(job.recipe.distillation, image_seconds))
            return
        screening = len(list(mergings(self.baseline.model))) * SCREENED_IMAGES * image_seconds
        training = self._trained * training_seconds(DistillationConfig(), image_seconds)
        self.pace.expect_seconds(screening=screening, training=training)

    def run(self) -> SearchResult:
        """Search, and choose; or make the one model that a recipe asks for.

        Raises:
            RecipeError: the model does not take the recipe.
            TargetError: no model meets the target; the message says what can be had.
        """
        recipe = self.job.recipe
        if recipe is None:
            self._searched()
        elif recipe.quantization is not None and recipe.quantization.per_channel and not self.evaluator.ours:
            raise RecipeError(f"quantization: per_channel needs our own kernels: {self.evaluator.ours_refusal}")
        else:
            self._measured(recipe)
        chosen, seconds = self._pick(), time.perf_counter() - self.started
        self.pace.note_others()
        return SearchResult(
            self.evaluator.dense, self.evaluator.measured, chosen, self.notes, seconds, self.trials.folder
        )

    def _searched(self) -> None:
        job, evaluator = self.job, self.evaluator
        plan = TokenPlan(class_last=True)
        exact = Recipe(plan) if self._takes(plan, "class token last") else DENSE
        evaluator.measure(exact)
        kl = quantizations(evaluator, exact) if job.tries("int8") else {}
        self._check_int8(kl)
        best = replace(exact, quantization=best_quantization(evaluator, exact, kl))
        if job.target.bytes is not None:  # merging tokens saves none
            return self._smaller(best, job.target.bytes)
        cost = self._schedules(exact.tokens) if job.tries("tokens") else {}
        if cost:
            merged = mergeable(evaluator, best, kl, next(iter(cost)))
            measure_schedules(evaluator, cost, merged, self._trained)
        self._distilled(structured(evaluator, best) if job.tries("monarch") and job.minutes != 0 else [])

    def _check_int8(self, kl: Mapping[QuantizationConfig, float]) -> None:
        """Refuse int8 that was named and cannot be had; the other methods are refused where they are tried."""
        if "int8" in self.job.methods and not kl:
            raise TargetError(f"--try int8: {self.notes[-1] if self.notes else 'no backend computes it'}")

    def _takes(self, plan: TokenPlan, what: str) -> bool:
        """Whether the model can compute these tokens; why not is noted, in one line where there are no rules at all."""
        model = self.baseline.fresh_model()
        try:
            apply_token_plan(model, plan)
        except ValueError as error:
            if plan.merging is not None and "tokens" in self.job.methods:
                raise TargetError(f"--try tokens: {error}") from None
            whose = "" if self.evaluator.ours else "NNCF's "
            alone = f"{type(model).__name__}: compressed by {whose}int8 alone, there are no rules to merge its tokens"
            note = f"without {what}: {error}" if has_token_rules(model) else alone
            if note not in self.notes:
                self.progress.note(note)
            return False
        return True

    def _schedules(self, tokens: TokenPlan) -> Mapping[TokenPlan, int]:
        """Multiply-accumulates of the token schedules that are worth measuring."""
        plans = [TokenPlan(merging, tokens.class_last) for merging in mergings(self.baseline.model)]
        if not plans or not self._takes(plans[0], "token merging"):
            return {}
        return screened_schedules(self.evaluator, plans)

    def _smaller(self, best: Recipe, limit: int) -> None:
        """Measure models with narrower layers, or structured ones where they are named, of at most `limit` bytes."""
        over = min((model.bytes for model in self.evaluator.measurements(best)), default=0) - limit
        if over > 0 and self.job.tries("widths"):
            self._narrower(best, over)
        named = over > 0 and "monarch" in self.job.methods and self.job.minutes != 0
        self._distilled([smaller_by_structure(self.evaluator, best, over)] if named else [])

    def _narrower(self, best: Recipe, over: int) -> None:
        """Measure models whose layers are so narrow that their bundles have `over` bytes less."""
        evaluator = self.evaluator
        try:
            ratios = smaller(self.baseline.model, over, 1 if best.quantization else 4)
            recipes = [replace(best, widths=widths) for widths in ratios]
            for at, recipe in enumerate(recipes, 1):
                screened_kl(evaluator, recipe)
                self.progress.step("narrower layers", at, len(recipes))
        except ValueError as error:
            if "widths" in self.job.methods:
                raise TargetError(f"--try widths: {error}") from None
            return self.progress.note(f"without narrower layers: {error}")
        self.pace.expect(min(len(recipes), NARROWER) + self._trained)
        for recipe in sorted(recipes, key=lambda recipe: screened_kl(evaluator, recipe))[:NARROWER]:
            evaluator.measure(recipe)

    def _distilled(self, structures: Sequence[Recipe]) -> None:
        """Train the structured models, the one that would be chosen and its faster neighbour, and measure them.

        Only what merging, narrower or structured layers took away is learnt again: rounding to 8 bits leaves too little
        to learn.
        """
        if self.job.minutes == 0:
            return
        ordered = pareto_frontier(list(self.evaluator.measured.values()), self.job.batches[0])
        by_model = {measured: candidate.recipe for candidate, measured in self.evaluator.measured.items()}
        try:
            chosen = self.evaluator.measured[self._pick()]
        except TargetError:
            if not structures:
                raise
            ordered = []  # what is trained may meet the target
        else:
            place = ordered.index(chosen) if chosen in ordered else 0
            ordered = ordered[max(0, place - DISTILLED + 1) : place + 1]
        near = [by_model[model] for model in ordered]
        changed = [recipe for recipe in near if recipe.tokens.merging or recipe.widths != FULL_WIDTH]
        learn = [
            recipe
            for recipe in dict.fromkeys(changed)
            if min(model.quality.kl.value for model in self.evaluator.measurements(recipe)) > TRAINED_KL
        ]
        left = [*structures, *(replace(recipe, distillation=DistillationConfig()) for recipe in learn)]
        while left:
            self.pace.expect(len(left))
            self._measured(self._planned(left))
            left.pop(0)

    def _planned(self, left: Sequence[Recipe]) -> Recipe:
        """Return the first recipe, trained for its share of the time that is left; a search that goes on keeps it."""
        first, image_seconds = left[0], self.evaluator.image_seconds
        if (minutes := self.job.minutes) is not None:
            steps = self.trials.get(f"steps/{first.file} in {minutes:g} min", lambda: self._steps(left, 60 * minutes))
            first = with_steps(first, steps)
        usual = [training_seconds(recipe.distillation, image_seconds) for recipe in left]
        longer = training_seconds(first.distillation, image_seconds) / usual[0]
        self.pace.expect_seconds(screening=0.0, training=longer * sum(usual[1:]))
        return first

    def _steps(self, left: Sequence[Recipe], limit: float) -> int:
        # Makes the models too, whose time is not left any more.
        timed = [
            self.trials.get(f"step_seconds/{recipe.file}", partial(step_seconds, self.evaluator, recipe))
            for recipe in left
        ]
        seconds = max(0.0, limit - (time.perf_counter() - self.started))
        return planned_steps(self.baseline, left, timed, seconds)

    def _measured(self, recipe: Recipe) -> None:
        """Train a model as its recipe asks for, and measure it."""
        if recipe.distillation is not None and not self.evaluator.recipes.weights_file(recipe).exists():
            distil(self.evaluator, recipe, self.progress)
        self.evaluator.measure(recipe)

    def _pick(self) -> SearchCandidate:
        by_model = {measured: candidate for candidate, measured in self.evaluator.measured.items()}
        if self.job.recipe is None:
            return by_model[pick(list(by_model), self.evaluator.dense, self.job.target)]
        made = self.evaluator.measurements(self.job.recipe)
        if not made:
            why = [note for note in self.notes if note.startswith(f"{self.job.recipe}, ")]
            raise TargetError(f"recipe {why[-1] if why else f'{self.job.recipe}: no backend that may computes it'}")
        return by_model[max(made, key=lambda model: speedup(model, self.evaluator.dense))]

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._tell(text)
