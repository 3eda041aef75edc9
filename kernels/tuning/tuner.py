"""Chooses the plan of a chain: measures every segment on every impl, then the cheapest plans end to end.

It runs while a model loads, never in a request. Each candidate is first compared with the plain evaluation; one that is
wrong is left out, logged and counted, and so is one that cannot be launched or captured.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from ..chain_ir import Add, Gelu, Problem, adds_residual, kinds
from ..impls.base import OTHER_KIND, Impl
from .cache import TuningCache
from .cache_key import tuning_key
from .chain import Chain, CompiledChain, compile_plan, invalid
from .plan import Path, Plan, Span, cheapest, cuts_of, every_span
from .report import Row, Trial
from .timing import Measure, Timed, timer_for
from .verify import Oracle, TuningError, failure

logger = logging.getLogger("milkweed.tuner")

TIE = 1.02
"""Among candidates within 2 % of the fastest, the one that keeps fewest bytes on the device is chosen."""

FINALISTS = 3
"""How many segmentations are timed end to end."""

PLAIN = ("torch", "dense")
"""The cheapest plan of these impls is timed end to end too, so what is chosen is not slower, ties aside."""

CACHED_IMAGES = 4
"""Images of a batch on which a plan from the cache is checked."""

ChooseRow = Callable[[Sequence[Row]], Row]
Choice = TypeVar("Choice", Row, Trial)


@dataclass(frozen=True)
class TunedChain:
    """What the tuner chose, ready to run, and why.

    Args:
        chain: the compiled chain.
        seconds: time of the plan end to end, when it was measured.
        rows, trials: what was measured now; empty if the plan was cached.
        cached: whether the plan was cached.
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
        """Number of candidates with wrong results."""
        return sum(row.discarded for row in self.rows)


def tune_chain(
    chain: Chain,
    problem: Problem,
    impls: Sequence[Impl],
    cache: TuningCache | None = None,
    measure: Measure | None = None,
) -> TunedChain:
    """Find the fastest plan of a chain on a problem, in the cache or by measuring now.

    Args:
        problem: its batch is that of a bucket.
        impls: impls to choose from.
        cache: keeps the plan for chains of equal shapes and later starts.
        measure: timer of a call; that of the device if None.

    Raises:
        TuningError: no plan gives right values, or the device no longer works.
    """
    tuned = cached_chain(chain, problem, impls, cache) if cache else None
    if tuned is None:
        with torch.no_grad():
            tuned = _Tuning(chain, problem, impls, measure or timer_for(problem.device)).run()
        if cache:
            cache.put(tuning_key(chain, problem, impls), {**tuned.plan.as_json(), "seconds": tuned.seconds})
    return tuned


def batch_buckets(max_batch: int) -> tuple[int, ...]:
    """Return the batch sizes to tune for: 1, 2, 4, ... and `max_batch`."""
    powers = [1 << i for i in range(max_batch.bit_length()) if 1 << i < max_batch]
    return (*powers, max_batch)


def bucket_of(batch: int, buckets: Iterable[int]) -> int:
    """Return the smallest bucket that holds a batch.

    Raises:
        ValueError: every bucket is smaller.
    """
    above = [bucket for bucket in buckets if bucket >= batch]
    if not above:
        raise ValueError(f"a batch of {batch} is above every bucket")
    return min(above)


def cached_chain(chain: Chain, problem: Problem, impls: Sequence[Impl], cache: TuningCache) -> TunedChain | None:
    """Return the plan in the cache, if it can run here and still gives right values.

    Raises:
        TuningError: the device no longer works.
    """
    entry = cache.get(tuning_key(chain, problem, impls))
    if entry is None:
        return None
    try:
        plan, seconds = Plan.from_json(entry), float(entry["seconds"])
        complaint = invalid(chain, plan, problem, impls)
    except (ValueError, TypeError, KeyError) as error:
        complaint = f"{type(error).__name__}: {error}"
    if complaint is None:
        try:
            with torch.no_grad():
                oracle = Oracle(chain.operators, chain.widths[0], chain.residual_width, problem, CACHED_IMAGES)
                compiled = compile_plan(chain, plan, problem, impls)
                complaint = oracle.judge(compiled)
        except Exception as error:
            complaint = failure(str(plan), error, problem)
        if complaint is None:
            return TunedChain(compiled, seconds, cached=True)
    logger.warning("the cached plan for %s cannot be used: %s", chain.describe(), complaint)
    return None


@dataclass
class _Tuning:
    """One run of the tuner."""

    chain: Chain
    problem: Problem
    impls: Sequence[Impl]
    measure: Measure
    rows: list[Row] = field(default_factory=list)

    def run(self) -> TunedChain:
        for span in every_span(len(self.chain)):
            self.rows += self._measure_segment(span)
        trials, compiled = self._time_end_to_end(self._finalists())
        if not trials:
            raise TuningError(
                f"nothing runs {self.chain.describe()} on {self.problem.describe()}: "
                + ("; ".join(f"{row.impl}: {row.refused}" for row in self.rows if row.refused))
            )
        best = lightest_of_fastest(trials)
        return TunedChain(compiled[best.plan], best.seconds, tuple(self.rows), tuple(trials))

    def _measure_segment(self, span: Span) -> list[Row]:
        """Return a row for each impl that is made for such segments; they share an oracle, made if any runs it."""
        segment, oracle, rows = self.chain.segment(span), None, []
        for impl in self.impls:
            reason = impl.refuses(segment, self.problem)
            if reason == OTHER_KIND or (reason is None and fuses_next(impl, self.chain, span, self.problem)):
                continue
            row = Row(span, "+".join(kinds(segment)), impl.name, refused=reason)
            if reason is None:
                oracle = oracle or self._oracle(span)
                row = self._measure_impl(row, impl, oracle)
            rows.append(row)
        return rows

    def _measure_impl(self, row: Row, impl: Impl, oracle: Oracle) -> Row:
        try:
            runner = impl.build(oracle.segment, self.problem)
            complaint = oracle.judge(runner)
            if complaint is None:
                label = f"{row.span[0]}:{row.span[1]} {row.impl}"
                seconds = self.measure(Timed(label, runner, oracle.inputs))
                resident = sum(tensor.nbytes for tensor in runner.tensors)
                return replace(row, seconds=seconds, resident_bytes=resident)
        except Exception as error:
            return self._refused(replace(row, refused=failure(f"{row.impl} on {row.operators}", error, self.problem)))
        return self._wrong(replace(row, refused=complaint))

    def _refused(self, row: Row) -> Row:
        """Log that it could not be launched, which only a launch can tell: its tile may not fit, say."""
        logger.info("%s does not run %s: %s", row.impl, row.operators, row.refused)
        return row

    def _wrong(self, row: Row) -> Row:
        """Log that its result was wrong, which is a defect here or in what it calls."""
        logger.warning("%s gives a wrong result for %s, so it is left out: %s", row.impl, row.operators, row.refused)
        return replace(row, discarded=True)

    def _oracle(self, span: Span) -> Oracle:
        segment = self.chain.segment(span)
        residual_width = self.chain.residual_width if adds_residual(segment) else 0
        return Oracle(segment, self.chain.widths[span[0]], residual_width, self.problem)

    def _finalists(self) -> list[tuple[float, Plan]]:
        """Return the cheapest segmentations, with their fastest impls and with the lightest of those nearly as fast."""
        names = {row.impl for row in self.rows}
        plans = [*self._cheapest(_fastest, names, FINALISTS), *self._cheapest(lightest_of_fastest, names, FINALISTS)]
        plans += self._cheapest(_fastest, PLAIN, 1)
        return list({plan: (seconds, plan) for seconds, plan in plans}.values())

    def _cheapest(self, choose: ChooseRow, names: Collection[str], count: int) -> list[tuple[float, Plan]]:
        """Return the cheapest segmentations by the sum of their segments; `choose` picks the impl of each segment."""
        chosen: dict[Span, Row] = {}
        for span in every_span(len(self.chain)):
            rows = [row for row in self.rows if row.span == span and row.seconds is not None and row.impl in names]
            if rows:
                chosen[span] = choose(rows)
        costs = {span: _seconds(row) for span, row in chosen.items()}

        def plan(path: Path) -> Plan:
            return Plan(len(self.chain), cuts_of(path), tuple(chosen[span].impl for span in path))

        return [(seconds, plan(path)) for seconds, path in cheapest(costs, len(self.chain), count)]

    def _time_end_to_end(self, plans: Sequence[tuple[float, Plan]]) -> tuple[list[Trial], dict[Plan, CompiledChain]]:
        """Time each plan as a whole twice, in turns, so that other load on the machine affects all of them."""
        if not plans:
            return [], {}
        oracle = self._oracle((0, len(self.chain)))
        compiled = {plan: compile_plan(self.chain, plan, self.problem, self.impls) for _, plan in plans}
        seconds: dict[Plan, float] = {}
        for _, plan in [*plans, *reversed(plans)]:
            if plan in compiled:
                spent = self._time_plan(compiled[plan], oracle)
                if spent is None:
                    del compiled[plan]
                else:
                    seconds[plan] = min(spent, seconds.get(plan, spent))
        trials = [
            Trial(plan, predicted, seconds[plan], compiled[plan].resident_bytes)
            for predicted, plan in plans
            if plan in compiled
        ]
        return trials, compiled

    def _time_plan(self, compiled: CompiledChain, oracle: Oracle) -> float | None:
        """Return the seconds of a whole plan; if it fails, return None and add a row that says why."""
        row = Row((0, len(self.chain)), "+".join(kinds(oracle.segment)), f"plan {compiled.plan}")
        try:
            complaint = oracle.judge(compiled)
            if complaint is None:
                return self.measure(Timed(row.impl, compiled, oracle.inputs))
            self.rows.append(self._wrong(replace(row, refused=complaint)))
        except Exception as error:
            self.rows.append(self._refused(replace(row, refused=failure(row.impl, error, self.problem))))
        return None


def fuses_next(impl: Impl, chain: Chain, span: Span, problem: Problem) -> bool:
    """Return whether an impl also takes the GELU or the addition behind a segment: the shorter segment is not measured.

    Nothing is gained by leaving it to another impl, which would read and write the whole tensor once more.
    """
    start, end = span
    behind = chain.operators[end : end + 1]
    return any(isinstance(operator, Gelu | Add) for operator in behind) and (
        impl.refuses(chain.segment((start, end + 1)), problem) is None
    )


def lightest_of_fastest(choices: Sequence[Choice]) -> Choice:
    """Return, of those within TIE of the fastest, the one of fewest bytes."""
    fastest = min(choice.seconds for choice in choices if choice.seconds is not None)
    near = [choice for choice in choices if choice.seconds is not None and choice.seconds <= TIE * fastest]
    return min(near, key=lambda choice: (choice.resident_bytes, choice.seconds))


def _fastest(rows: Sequence[Row]) -> Row:
    return min(rows, key=_seconds)


def _seconds(row: Row) -> float:
    assert row.seconds is not None
    return row.seconds
