"""Two ways to find how to cut a chain of 16 operators, by what they find and how much they measure.

A way to cut is a string of 15 bits, bit i a cut after operator i. One search measures whole strings drawn at random,
teaches gradient-boosted trees (XGBoost) to predict the latency of all 32,768, and times the best three. The other
measures every segment, 136 at most, and times the best three sums. Both run a segment on the same engine, so they
choose among the same programs. A search is judged by regret: how much longer than the best known what it chose runs.

    python -m milkweed.bench.fusion_search
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch

from ..kernels.engines.base import Engine
from ..kernels.engines.registry import all_engines
from ..kernels.operators import Add, Attention, Dense, Gelu, LayerNorm, Monarch, Operator, Problem
from ..kernels.tuning.chain import Chain, compile_plan
from ..kernels.tuning.plan import Plan, Span, cheapest, cuts_of, every_span, spans_of
from ..kernels.tuning.timing import Inputs, Timed, host_seconds, timer_for
from ..kernels.tuning.tuner import tune_chain
from ..kernels.tuning.untuned import preferred_engines, untuned_plan
from ..models.provenance import library_versions
from .machine import machine

RESULTS = Path("bench/results/fusion_search.json")

FINALISTS = 3
BUDGETS = (34, 136, 272)
"""Strings measured for the trees: a quarter of the number of segments, as many, twice as many."""

POOL = 544
"""Strings drawn and measured at all; each sample is drawn from them."""

ROUNDS, FINAL_ROUNDS = 3, 15

Key = TypeVar("Key", Plan, Span)
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Shape:
    """Sizes of the chain and of its input."""

    dim: int
    hidden_dim: int
    head_dim: int
    tokens: int
    batch: int
    dtype: str


SHAPES = {"cpu": Shape(128, 512, 64, 50, 2, "float32"), "cuda": Shape(384, 1536, 64, 197, 32, "bfloat16")}


@dataclass(frozen=True)
class Choice:
    """What one search chose.

    Args:
        measurements: strings or segments that it timed, its finalists included.
    """

    search: str
    measurements: int
    plan: Plan


def sixteen_operators(shape: Shape) -> Chain:
    """An attention half, two MLP halves, a last norm: 16 operators, random weights. One residual serves all Adds."""
    torch.manual_seed(0)

    def norm() -> LayerNorm:
        return LayerNorm(torch.ones(shape.dim), torch.zeros(shape.dim), 1e-6)

    def monarch(width: int, out: int, nblocks: int = 4) -> Monarch:
        p, s = width // nblocks, out // nblocks
        q = min(p, s)
        factors = torch.randn(nblocks, q, p) / p**0.5, torch.randn(nblocks, s, q) / q**0.5
        return Monarch(*factors, torch.randn(out), width, out)

    dim, hidden = shape.dim, shape.hidden_dim
    qkv = Dense(torch.randn(3 * dim, dim) / dim**0.5, torch.randn(3 * dim))
    attention = Attention(dim // shape.head_dim, shape.head_dim, shape.head_dim**-0.5)
    operators: list[Operator] = [norm(), qkv, attention, monarch(dim, dim), Add()]
    for _ in range(2):
        operators += [norm(), monarch(dim, hidden), Gelu(), monarch(hidden, dim), Add()]
    return Chain([*operators, norm()])


class Bench:
    """Times strings and segments of a chain, each segment on the first preferred engine that takes it."""

    def __init__(self, chain: Chain, problem: Problem, engines: Sequence[Engine]) -> None:
        self.chain, self.problem, self.engines = chain, problem, engines
        self.measure = timer_for(problem.device) if problem.device.type == "cuda" else processor_seconds
        self._preferred = preferred_engines(engines, problem)

    def plan(self, cuts: int) -> Plan:
        """The string's program."""
        length = len(self.chain)
        return Plan(length, cuts, tuple(self._engine(span).name for span in spans_of(cuts, length)))

    def seconds(self, plans: Iterable[Plan], rounds: int = ROUNDS) -> dict[Plan, float]:
        """Of whole chains."""
        runs = {p: compile_plan(self.chain, p, self.problem, self.engines) for p in dict.fromkeys(plans)}
        inputs = self._inputs(self.chain.widths[0])
        return self._in_turns({plan: Timed(str(plan), run, inputs) for plan, run in runs.items()}, rounds)

    def segment_seconds(self) -> dict[Span, float]:
        """Of every segment alone."""
        calls = {}
        for span in every_span(len(self.chain)):
            run = self._engine(span).build(self.chain.segment(span), self.problem)
            calls[span] = Timed(str(span), run, self._inputs(self.chain.widths[span[0]]))
        return self._in_turns(calls, ROUNDS)

    def _in_turns(self, calls: dict[Key, Timed], rounds: int) -> dict[Key, float]:
        """Each measured once a round; its least, for what else a machine does only adds."""
        taken: dict[Key, list[float]] = {key: [] for key in calls}
        for i in range(rounds):
            for key in calls if i % 2 else reversed(calls):
                taken[key].append(self.measure(calls[key]))
        return {key: min(seconds) for key, seconds in taken.items()}

    def _engine(self, span: Span) -> Engine:
        segment = self.chain.segment(span)
        return next(engine for engine in self._preferred if engine.refuses(segment, self.problem) is None)

    def _inputs(self, width: int) -> list[Inputs]:
        def normal(features: int) -> torch.Tensor:
            shape = (self.problem.batch, self.problem.tokens, features)
            return torch.randn(shape, device=self.problem.device).to(self.problem.dtype)

        return [(normal(width), normal(self.chain.residual_width)) for _ in range(3)]


def processor_seconds(call: Callable[[], object]) -> float:
    """Median processor time of a call: while other programs run it waits, and that does not count."""
    return host_seconds(call, time.process_time)


def by_segments(bench: Bench) -> tuple[int, Plan]:
    """Measure every segment, take the best three sums, time those: measurements, choice."""
    costs, length = bench.segment_seconds(), len(bench.chain)
    finalists = [bench.plan(cuts_of(path)) for _, path in cheapest(costs, length, FINALISTS)]
    return len(costs) + len(finalists), fastest(bench, finalists)


def by_trees(bench: Bench, sample: Sequence[tuple[int, float]]) -> tuple[int, Plan]:
    """Predict every string from the measured ones, time the best three: measurements, choice."""
    places = len(bench.chain) - 1
    predicted = predict_all(sample, places)
    finalists = [bench.plan(int(cuts)) for cuts in np.argsort(predicted, kind="stable")[:FINALISTS]]
    return len(sample) + len(finalists), fastest(bench, finalists)


def fastest(bench: Bench, finalists: Sequence[Plan]) -> Plan:
    """Of some plans, timed as wholes."""
    seconds = bench.seconds(finalists)
    return min(seconds, key=seconds.__getitem__)


def predict_all(sample: Sequence[tuple[int, float]], places: int) -> np.ndarray:
    """XGBoost's latency (log) of each of the 2^places strings, from measured (string, seconds).

    Raises:
        ImportError: xgboost is not there; the message says what to install.
    """
    xgboost = _xgboost()
    bits = np.arange(places)
    measured = np.array([cuts for cuts, _ in sample])[:, None] >> bits & 1
    table = xgboost.DMatrix(measured, label=np.log([seconds for _, seconds in sample]))
    settings = {"max_depth": 4, "eta": 0.1, "subsample": 0.8, "seed": 0, "nthread": 1}
    trees = xgboost.train(settings, table, num_boost_round=200)
    every = np.arange(1 << places)[:, None] >> bits & 1
    return np.asarray(trees.predict(xgboost.DMatrix(every)))


def _xgboost() -> ModuleType:
    try:
        import xgboost
    except ImportError as error:
        raise ImportError(f"the learned search needs xgboost: pip install 'milkweed[fusion]' ({error})") from error
    return xgboost


def run(
    device: str,
    *,
    budgets: Sequence[int] | None = None,
    seeds: int = 5,
    rounds: int = FINAL_ROUNDS,
    shape: Shape | None = None,
    progress: Progress = lambda text: None,
) -> dict[str, Any]:
    """Both searches on one device, and the best that is known: machine, settings, rows."""
    _xgboost()  # missing: said before minutes of measuring
    shape, budgets = shape or SHAPES[device], budgets or BUDGETS
    problem = Problem(torch.device(device), getattr(torch, shape.dtype), shape.batch, shape.tokens)
    bench, load_before = Bench(sixteen_operators(shape), problem, all_engines()), os.getloadavg()
    with torch.no_grad():
        choices = [*_choices(bench, progress), *_learned_choices(bench, budgets, seeds, progress)]
        progress("what was chosen, in turns")
        seconds = bench.seconds([choice.plan for choice in choices], rounds)
    least = min(seconds.values())
    return {
        "benchmark": "fusion_search",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "versions": {**library_versions(), "xgboost": _xgboost().__version__},
        "settings": {
            "device": device,
            **asdict(shape),
            "threads": torch.get_num_threads(),
            "seeds": seeds,
            "clock": "CUDA graphs" if device == "cuda" else "processor time",
        },
        "rows": [
            {
                "search": choice.search,
                "measurements": choice.measurements,
                "plan": str(choice.plan),
                "seconds": seconds[choice.plan],
                "regret": seconds[choice.plan] / least - 1,
            }
            for choice in choices
        ],
    }


def _choices(bench: Bench, progress: Progress) -> Iterator[Choice]:
    """Of the searches that need no strings."""
    progress("segments")
    yield Choice("segments, shortest path", *by_segments(bench))
    progress("segments, every engine")
    tuned = tune_chain(bench.chain, bench.problem, bench.engines, measure=bench.measure)
    timed = sum(row.seconds is not None for row in tuned.rows) + 2 * len(tuned.trials)
    yield Choice("tuner: segments, every engine", timed, tuned.plan)
    yield Choice("untuned: nothing measured", 0, untuned_plan(bench.chain, bench.problem, bench.engines))


def _learned_choices(bench: Bench, budgets: Sequence[int], seeds: int, progress: Progress) -> Iterator[Choice]:
    """Of the trees, and of no trees: the fastest of the same strings."""
    pool = random.Random(0).sample(range(1 << (len(bench.chain) - 1)), max(POOL, *budgets))
    progress(f"{len(pool)} strings")
    measured = [(plan.cuts, seconds) for plan, seconds in bench.seconds(map(bench.plan, pool)).items()]
    for budget in budgets:
        for seed in range(seeds):
            sample = random.Random(seed).sample(measured, budget)
            yield Choice(f"XGBoost on {budget} strings", *by_trees(bench, sample))
            fastest_cuts, _ = min(sample, key=lambda pair: pair[1])
            yield Choice(f"best of {budget} strings", budget, bench.plan(fastest_cuts))


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line a search: measurements, median and greatest regret over its seeds."""
    lines = [f"{'search':36} {'measured':>8} {'regret':>8} {'greatest':>8}"]
    for name in dict.fromkeys(row["search"] for row in rows):
        of_search = [row for row in rows if row["search"] == name]
        regrets = [row["regret"] for row in of_search]
        measured = of_search[0]["measurements"]
        lines.append(f"{name:36} {measured:8} {median(regrets):8.1%} {max(regrets):8.1%}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Command line: print a line a search, write the JSON."""
    parser = argparse.ArgumentParser(description="How to cut a chain of operators: two searches, by regret.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU's operations")
    parser.add_argument("--seeds", type=int, default=5, help="samples of strings for each budget")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    try:
        document = run(options.device, seeds=options.seeds, progress=lambda text: print(text, file=sys.stderr))
    except ImportError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(summary(document["rows"])))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
