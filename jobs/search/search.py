"""Searches for a model on the frontier of accuracy and measured speed, from a dense model and photographs alone.

What costs least comes first: exact rewrites, quantisation, token schedules by their KL alone; then those that may be on
the front are exported and timed, a few of them quantised, and the one that is taken is trained. KLs of tokens and bits
nearly add up, so their sum says which pairs are worth measuring.
"""

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from torch import nn

from ...inference.device import CPU, computes_in_bfloat16, usable_cores
from ...models.accounting import macs
from ...models.architectures.token_blocks import apply_token_plan, token_depth
from ...models.bundle.provenance import library_versions
from ...models.divergence import diverge
from ...models.layers.token_plan import TokenPlan
from ...models.onnx.quantize import int8_instructions
from ...models.progress import SILENT, Progress
from ...models.report.frontier import front
from ..train_split import digest
from .distil import distil
from .front import Measured, fastest, pick, speedup
from .job import SearchJob
from .levers import BITS, ENOUGH_KL, WHOLE, Bits, Levers, mergings
from .narrower import smaller
from .pace import Pace
from .runs import DENSE, Run, Runs, ours_refusal
from .subject import Subject
from .trials import Trials

SCREENED_IMAGES = 64
"""Token schedules are compared by so many judging images; those that are left, by all."""

MEASURED, NARROWER, DISTILLED = 4, 2, 2
"""So many token schedules are exported, quantised and timed where no speed is asked for; so many models that are narrow
enough for the bytes; so many are trained."""

MOST_KL = 0.3
"""Beyond this a model answers something else."""


@dataclass(frozen=True)
class Found:
    """What a search found.

    Args:
        dense: the dense model in float32, in the backend that it is fastest in.
        models: everything that was measured.
        chosen: the one that meets the target.
    """

    dense: Measured
    models: Mapping[Run, Measured]
    chosen: Run
    notes: Sequence[str]
    seconds: float


class Search:
    """One search. Every finding is in `trials`, so that one that was killed goes on.

    Raises:
        BackendError, BundleError, DataError, TrialsError: one line that says what is wrong.
    """

    def __init__(self, job: SearchJob, progress: Progress = SILENT) -> None:
        self.job, self.notes, self.started = job, list[str](), time.perf_counter()
        self.progress = replace(progress, note=self._note(progress))
        self.subject = Subject(job, self.progress)
        self.trials = Trials(job.work, self._belongs_to())
        if self.trials.resumed:
            progress.note(f"going on with the unfinished search in {job.work}")
        self.runs = Runs(self.subject, job, self.trials, self.progress)
        self.pace = Pace(progress, 2 + MEASURED + self._trained)

    def run(self) -> Found:
        """Search, and choose.

        Raises:
            TargetError: no model meets the target; the message says what can be had.
        """
        exact = self._exact()
        self._measure(exact)
        kl = self._bits(exact)
        best = replace(exact, bits=self._best_bits(exact, kl))
        over = min((found.bytes for found in self._found(best)), default=0) - (self.job.target.bytes or inf)
        if over > 0:  # merging tokens saves no bytes
            self._narrower(best, int(over))
        else:
            cost = self._screened(best.tokens)
            self._schedules(cost, self._mergeable(best, kl, cost))
        if self.job.distil:
            self._distilled()
        chosen = self._pick()
        return Found(self.runs.dense, self.runs.found, chosen, self.notes, time.perf_counter() - self.started)

    def _exact(self) -> Levers:
        """The rewrites that change nothing but rounding."""
        plan = TokenPlan(class_last=True)
        return Levers(plan) if self._takes(plan, "class token last") else DENSE

    def _takes(self, plan: TokenPlan, what: str) -> bool:
        """Whether the model can compute these tokens; why not is noted."""
        try:
            apply_token_plan(self.subject.fresh_model(), plan)
        except ValueError as error:
            self.progress.note(f"without {what}: {error}")
            return False
        return True

    def _measure(self, levers: Levers) -> None:
        known = len(self.trials.found)
        with self.pace.model(lambda: len(self.trials.found) > known):
            self.runs.measure(levers)

    def _bits(self, exact: Levers) -> dict[Bits, float]:
        """KL by quantisation, of those that can be had."""
        kl: dict[Bits, float] = {}
        for bits in BITS:
            if bits.alpha is not None and min(kl.values(), default=inf) <= ENOUGH_KL:
                continue
            # For few bytes queries and keys may have to be narrower, which our kernels do not compute.
            if bits.per_channel and (not self.runs.ours or self.job.target.bytes is not None):
                continue
            tried = replace(exact, bits=bits)
            try:
                self._measure(tried)
            except (ImportError, ValueError) as error:
                self.progress.note(f"without {bits}: {error}")
                continue
            if found := self._found(tried):
                kl[bits] = min(each.quality.kl.value for each in found)
        if kl and int8_instructions() is None and not self.runs.ours:
            self.progress.note("this CPU has no products of int8, such as VNNI: int8 saves bytes, but hardly time")
        return kl

    def _best_bits(self, exact: Levers, kl: Mapping[Bits, float]) -> Bits | None:
        """The quantisation of every further model: the fastest that loses little, and None where float is faster."""
        if not kl or self.job.target.bytes is not None:
            return min(kl, key=lambda bits: kl[bits], default=None)
        close = [bits for bits in kl if kl[bits] <= max(ENOUGH_KL, min(kl.values()))]
        by_model = {found: bits for bits in (None, *close) for found in self._found(replace(exact, bits=bits))}
        return by_model[fastest(list(by_model), self.runs.dense)]

    def _mergeable(self, best: Levers, kl: Mapping[Bits, float], plans: Mapping[TokenPlan, int]) -> Levers:
        """The best levers whose kernels can merge tokens so: ours do not in every model."""
        if not plans or best.bits is None or not best.bits.per_channel:
            return best
        refusal = ours_refusal(self.runs.model(Levers(next(iter(plans)))), self.subject.size)
        if refusal is None:
            return best
        self.progress.note(f"tokens merge without {best.bits}: {refusal}")
        others = {bits: found for bits, found in kl.items() if not bits.per_channel}
        return replace(best, bits=self._best_bits(best.floating, others))

    def _screened(self, tokens: TokenPlan) -> dict[TokenPlan, int]:
        """Multiply-accumulates of token schedules that no other one beats in KL with as many, the least KL first."""
        plans = [TokenPlan(each, tokens.class_last) for each in mergings(*_tokens(self.subject.model))]
        if not plans or not self._takes(plans[0], "token merging"):
            return {}
        kl: dict[TokenPlan, float] = {}
        cost: dict[TokenPlan, int] = {}
        for at, plan in enumerate(plans):
            cost[plan] = macs(self.runs.model(Levers(plan)), self.subject.size).total
            kl[plan] = self._kl(Levers(plan))
            self.progress.step("token schedules", at + 1, len(plans))
        kept: list[TokenPlan] = []
        for plan in sorted(plans, key=lambda plan: (cost[plan], kl[plan])):
            if kl[plan] < min([MOST_KL, *(kl[one] for one in kept)]):
                kept.append(plan)
        return {plan: cost[plan] for plan in reversed(kept)}

    def _kl(self, levers: Levers) -> float:
        """KL of a model without quantisation, by some of the judging images."""

        def measured() -> float:
            dtype = torch.bfloat16 if computes_in_bfloat16(CPU) else torch.float32
            batches = self.subject.judge.pixels[:SCREENED_IMAGES].to(dtype).split(32)
            return diverge(self.runs.model(levers).to(dtype), batches, self.subject.dense[:SCREENED_IMAGES]).kl

        return float(self.trials.get(f"screened/{levers.file}", measured))

    def _schedules(self, cost: Mapping[TokenPlan, int], best: Levers) -> None:
        """Measure some schedules: those that find the first one which meets a target of speed, or from end to end.

        Args:
            cost: multiply-accumulates of each, the least KL and the most operations first.
        """
        wanted, plans = self._wanted_speedup(), list(cost)
        if wanted is None or not plans:
            spread = _spread(plans, MEASURED)
            self.pace.expect(len(spread) + self._trained)
            for plan in spread:
                self._measure(replace(best, tokens=plan))
            return
        whole, now = macs(self.runs.model(best), self.subject.size).total, self._speedup(best)
        slow = sum(now * whole / cost[plan] < wanted for plan in plans)  # as fast as their operations say at best
        first, end = min(slow, len(plans) - 1), len(plans)
        while first < end:
            self.pace.expect((end - first).bit_length() + self._trained)
            middle = (first + end) // 2
            self._measure(replace(best, tokens=plans[middle]))
            if self._speedup(replace(best, tokens=plans[middle])) >= wanted:
                end = middle
            else:
                first = middle + 1

    def _narrower(self, best: Levers, over: int) -> None:
        """Measure models whose layers are so narrow that their file has `over` bytes less."""
        try:
            shares = smaller(self.subject.model, over, 1 if best.bits else 4)
            tried = []
            for at, each in enumerate(shares):
                tried.append(replace(best, widths=each))
                self._kl(tried[-1].plain)
                self.progress.step("narrower layers", at + 1, len(shares))
        except ValueError as error:
            return self.progress.note(f"without narrower layers: {error}")
        self.pace.expect(min(len(tried), NARROWER) + self._trained)
        for levers in sorted(tried, key=lambda levers: self._kl(levers.plain))[:NARROWER]:
            self._measure(levers)

    def _speedup(self, levers: Levers) -> float:
        """The speedup of some levers over the dense model, in their fastest backend."""
        return max((speedup(found, self.runs.dense) for found in self._found(levers)), default=0.0)

    def _found(self, levers: Levers) -> list[Measured]:
        return [found for run, found in self.runs.found.items() if run.levers == levers]

    @property
    def _trained(self) -> int:
        """How many models may be trained in the end."""
        return DISTILLED if self.job.distil else 0

    def _wanted_speedup(self) -> float | None:
        """The speedup that is asked for; None where none is."""
        target = self.job.target
        if target.ms is not None:
            return max(self.runs.dense.ms.values()) / target.ms
        return target.speedup

    def _distilled(self) -> None:
        """Train the model that would be taken and its faster neighbour on the front, and measure them.

        Only what merging or narrower layers took away is learnt again: rounding to 8 bits leaves too little to learn.
        """
        ordered = front(list(self.runs.found.values()), self.job.batches[0])
        chosen = self.runs.found[self._pick()]
        place = ordered.index(chosen) if chosen in ordered else 0
        by_model = {found: run.levers for run, found in self.runs.found.items()}
        near = [by_model[one] for one in ordered[max(0, place - DISTILLED + 1) : place + 1]]
        for levers in dict.fromkeys(each for each in near if each.tokens.merging or each.widths != WHOLE):
            trained = replace(levers, distilled=True)
            if not self.runs.weights_file(trained).exists():
                distil(self.runs, trained, self.progress)
            self._measure(trained)

    def _pick(self) -> Run:
        by_model = {found: run for run, found in self.runs.found.items()}
        return by_model[pick(list(by_model), self.runs.dense, self.job.target)]

    def _note(self, progress: Progress) -> Any:
        def note(text: str) -> None:
            self.notes.append(text)
            progress.note(text)

        return note

    def _belongs_to(self) -> dict[str, Any]:
        """All that decides the findings."""
        job = self.job
        return {
            "model": self.subject.config.version,
            "images": digest(job.images, self.subject.samples),
            "batches": job.batches,
            "backends": job.backends,
            "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {usable_cores()} cores",
            "versions": library_versions(),
        }


def _tokens(model: nn.Module) -> tuple[int, bool]:
    """The number of blocks that a plan counts, and whether the model has a class token."""
    return token_depth(model), getattr(model, "cls_token", None) is not None


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the items, the first and the last among them, the others evenly between."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]
