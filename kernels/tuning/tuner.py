"""Chooses what a chain runs on: measures every segment on every engine, then the cheapest ways to cut, end to end.

It runs while a model loads, never in a request. Nothing is believed: each candidate is held against the plain
evaluation first, and one that is wrong is left out, logged and counted, as is what cannot be launched or captured.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from ..chain_ir import Problem, adds_residual, kinds
from ..impls.base import OTHER_KIND, Engine
from .cache import TuningCache
from .cache_key import tuning_key
from .chain import Chain, CompiledChain, compile_plan, invalid
from .plan import Path, Plan, Span, cheapest, cuts_of, every_span
from .report import Row, Trial
from .timing import Measure, Timed, timer_for
from .verify import Truth, TuningError, failure

logger = logging.getLogger("milkweed.tuner")

TIE = 1.02
"""Within 2 % of the fastest, the one that keeps fewer bytes on the device is chosen."""

FINALISTS = 3
"""Segmentations that are timed end to end."""

PLAIN = ("torch", "dense")
"""Engines whose own cheapest plan is timed end to end too: what is chosen is not slower than that (but for a tie)."""

CACHED_IMAGES = 4
"""Images of a batch that a plan out of the cache is checked on."""

Choose = Callable[[Sequence[Row]], Row]
Choice = TypeVar("Choice", Row, Trial)


@dataclass(frozen=True)
class TunedChain:
    """What the tuner chose, ready to run, and why.

    Args:
        chain: runs it.
        seconds: of the plan end to end, when it was measured.
        rows, trials: what was measured now; empty where the plan was cached.
        cached: the plan was.
    """

    chain: CompiledChain
    seconds: float
    rows: tuple[Row, ...] = ()
    trials: tuple[Trial, ...] = ()
    cached: bool = False

    @property
    def plan(self) -> Plan:
        return self.chain.plan

    @property
    def discarded(self) -> int:
        """Candidates that gave wrong results."""
        return sum(row.discarded for row in self.rows)


def tune_chain(
    chain: Chain,
    problem: Problem,
    engines: Sequence[Engine],
    cache: TuningCache | None = None,
    measure: Measure | None = None,
) -> TunedChain:
    """The fastest way to run a chain on a problem, out of the cache or measured now.

    Args:
        problem: its batch is a bucket's.
        engines: those to choose among.
        cache: where chains of equal shapes, and later starts, find it again.
        measure: seconds of a call; that of the device when None.

    Raises:
        TuningError: nothing runs the chain rightly, or the device no longer works.
    """
    found = cached_chain(chain, problem, engines, cache) if cache else None
    if found is None:
        with torch.no_grad():
            found = _Tuning(chain, problem, engines, measure or timer_for(problem.device)).run()
        if cache:
            cache.put(tuning_key(chain, problem, engines), {**found.plan.as_json(), "seconds": found.seconds})
    return found


def batch_buckets(max_batch: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `max_batch`: the batches that are tuned for."""
    powers = [1 << i for i in range(max_batch.bit_length()) if 1 << i < max_batch]
    return (*powers, max_batch)


def bucket_of(batch: int, buckets: Iterable[int]) -> int:
    """The nearest bucket above.

    Raises:
        ValueError: the batch is above all of them.
    """
    above = [bucket for bucket in buckets if bucket >= batch]
    if not above:
        raise ValueError(f"a batch of {batch} is above every bucket")
    return min(above)


def cached_chain(chain: Chain, problem: Problem, engines: Sequence[Engine], cache: TuningCache) -> TunedChain | None:
    """The plan that was found before, if it can run here and still gives right values.

    Raises:
        TuningError: the device no longer works.
    """
    entry = cache.get(tuning_key(chain, problem, engines))
    if entry is None:
        return None
    try:
        plan, seconds = Plan.from_json(entry), float(entry["seconds"])
        complaint = invalid(chain, plan, problem, engines)
    except (ValueError, TypeError, KeyError) as error:
        complaint = f"{type(error).__name__}: {error}"
    if complaint is None:
        try:
            with torch.no_grad():
                truth = Truth(chain.operators, chain.widths[0], chain.residual_width, problem, CACHED_IMAGES)
                compiled = compile_plan(chain, plan, problem, engines)
                complaint = truth.judge(compiled)
        except Exception as error:
            complaint = failure(str(plan), error, problem)
        if complaint is None:
            return TunedChain(compiled, seconds, cached=True)
    logger.warning("the cached plan for %s cannot be used: %s", chain.describe(), complaint)
    return None


@dataclass
class _Tuning:
    """One run of the tuner, from nothing to a plan."""

    chain: Chain
    problem: Problem
    engines: Sequence[Engine]
    measure: Measure
    rows: list[Row] = field(default_factory=list)

    def run(self) -> TunedChain:
        for span in every_span(len(self.chain)):
            self.rows += self._measure_segment(span)
        trials, compiled = self._time_end_to_end(self._finalists())
        if not trials:
            raise TuningError(
                f"nothing runs {self.chain.describe()} on {self.problem.describe()}: "
                + ("; ".join(f"{row.engine}: {row.refused}" for row in self.rows if row.refused))
            )
        best = lightest_of_fastest(trials)
        return TunedChain(compiled[best.plan], best.seconds, tuple(self.rows), tuple(trials))

    def _measure_segment(self, span: Span) -> list[Row]:
        """A row for each engine made for such segments. Inputs and truth are made once, if any of them runs it."""
        segment, truth, rows = self.chain.segment(span), None, []
        for engine in self.engines:
            reason = engine.refuses(segment, self.problem)
            if reason == OTHER_KIND:
                continue
            row = Row(span, "+".join(kinds(segment)), engine.name, refused=reason)
            if reason is None:
                truth = truth or self._truth(span)
                row = self._measure_engine(row, engine, truth)
            rows.append(row)
        return rows

    def _measure_engine(self, row: Row, engine: Engine, truth: Truth) -> Row:
        try:
            runner = engine.build(truth.segment, self.problem)
            complaint = truth.judge(runner)
            if complaint is None:
                label = f"{row.span[0]}:{row.span[1]} {row.engine}"
                seconds = self.measure(Timed(label, runner, truth.inputs))
                resident = sum(tensor.nbytes for tensor in runner.tensors)
                return replace(row, seconds=seconds, resident_bytes=resident)
        except Exception as error:
            return self._refused(replace(row, refused=failure(f"{row.engine} on {row.operators}", error, self.problem)))
        return self._wrong(replace(row, refused=complaint))

    def _refused(self, row: Row) -> Row:
        """It could not be launched, which only the launch could tell: a tile that does not fit, say."""
        logger.info("%s does not run %s: %s", row.engine, row.operators, row.refused)
        return row

    def _wrong(self, row: Row) -> Row:
        """It ran and gave something else: a defect, here or in what it calls."""
        logger.warning("%s gives a wrong result for %s, so it is left out: %s", row.engine, row.operators, row.refused)
        return replace(row, discarded=True)

    def _truth(self, span: Span) -> Truth:
        segment = self.chain.segment(span)
        residual_width = self.chain.residual_width if adds_residual(segment) else 0
        return Truth(segment, self.chain.widths[span[0]], residual_width, self.problem)

    def _finalists(self) -> list[tuple[float, Plan]]:
        """The cheapest segmentations, each with its fastest engines and with the lightest of nearly as fast ones."""
        names = {row.engine for row in self.rows}
        plans = [*self._cheapest(_fastest, names, FINALISTS), *self._cheapest(lightest_of_fastest, names, FINALISTS)]
        plans += self._cheapest(_fastest, PLAIN, 1)
        return list({plan: (seconds, plan) for seconds, plan in plans}.values())

    def _cheapest(self, choose: Choose, names: Collection[str], count: int) -> list[tuple[float, Plan]]:
        """The cheapest segmentations by the sum of segments, where `choose` picks the engine of each segment."""
        chosen: dict[Span, Row] = {}
        for span in every_span(len(self.chain)):
            rows = [row for row in self.rows if row.span == span and row.seconds is not None and row.engine in names]
            if rows:
                chosen[span] = choose(rows)
        costs = {span: _seconds(row) for span, row in chosen.items()}

        def plan(path: Path) -> Plan:
            return Plan(len(self.chain), cuts_of(path), tuple(chosen[span].engine for span in path))

        return [(seconds, plan(path)) for seconds, path in cheapest(costs, len(self.chain), count)]

    def _time_end_to_end(self, plans: Sequence[tuple[float, Plan]]) -> tuple[list[Trial], dict[Plan, CompiledChain]]:
        """Each plan as a whole, twice and in turns, so that what else the machine does hits all of them."""
        if not plans:
            return [], {}
        truth = self._truth((0, len(self.chain)))
        compiled = {plan: compile_plan(self.chain, plan, self.problem, self.engines) for _, plan in plans}
        seconds: dict[Plan, float] = {}
        for _, plan in [*plans, *reversed(plans)]:
            if plan in compiled:
                taken = self._time_plan(compiled[plan], truth)
                if taken is None:
                    del compiled[plan]
                else:
                    seconds[plan] = min(taken, seconds.get(plan, taken))
        trials = [
            Trial(plan, predicted, seconds[plan], compiled[plan].resident_bytes)
            for predicted, plan in plans
            if plan in compiled
        ]
        return trials, compiled

    def _time_plan(self, compiled: CompiledChain, truth: Truth) -> float | None:
        """Seconds of a whole plan; None, and a row that says why, where it does not do."""
        row = Row((0, len(self.chain)), "+".join(kinds(truth.segment)), f"plan {compiled.plan}")
        try:
            complaint = truth.judge(compiled)
            if complaint is None:
                return self.measure(Timed(row.engine, compiled, truth.inputs))
            self.rows.append(self._wrong(replace(row, refused=complaint)))
        except Exception as error:
            self.rows.append(self._refused(replace(row, refused=failure(row.engine, error, self.problem))))
        return None


def lightest_of_fastest(choices: Sequence[Choice]) -> Choice:
    """Of those within TIE of the fastest, the one of fewest bytes."""
    fastest = min(choice.seconds for choice in choices if choice.seconds is not None)
    near = [choice for choice in choices if choice.seconds is not None and choice.seconds <= TIE * fastest]
    return min(near, key=lambda choice: (choice.resident_bytes, choice.seconds))


def _fastest(rows: Sequence[Row]) -> Row:
    return min(rows, key=_seconds)


def _seconds(row: Row) -> float:
    assert row.seconds is not None
    return row.seconds
