"""What a chain runs on that nobody measured: the engines made for its segments, in a fixed order of preference."""

import logging
from collections.abc import Sequence

import torch

from ..chain_ir import Problem, describe
from ..impls.base import Engine
from .chain import Chain, CompiledChain, compile_plan
from .plan import Plan, Span, cuts_of
from .verify import Truth, failure

logger = logging.getLogger("milkweed.tuner")

PREFERRED = {
    # Strides instead of permutation copies: faster than dense on the CPUs measured (README).
    "cpu": ("feature_major", "dense", "torch"),
    # Two batched products with copies between them are slower than the dense layer there (roofline), so it goes first.
    "cuda": ("native_mlp", "native_linear", "native_attention", "triton_mlp", "triton", "dense", "torch"),
}
OTHERWISE = ("dense", "batched", "torch")

CHECKED_IMAGES = 4
"""Images of a batch that an untuned plan is held against the plain evaluation on."""


def untuned_chain(chain: Chain, problem: Problem, engines: Sequence[Engine]) -> CompiledChain:
    """The untuned plan, compiled, and held against the plain evaluation; an engine that gives no right values is left.

    Raises:
        ValueError: the engines that are right do not run all of the chain.
        TuningError: the device no longer works.
    """
    left = preferred_engines(engines, problem)
    with torch.no_grad():
        truth = Truth(chain.operators, chain.widths[0], chain.residual_width, problem, CHECKED_IMAGES)
        while True:
            plan = untuned_plan(chain, problem, left)
            try:
                compiled = compile_plan(chain, plan, problem, left)
                complaint = truth.judge(compiled)
                if complaint is None:
                    return compiled
            except Exception as error:
                complaint = failure(f"plan {plan}", error, problem)
            suspect = next(engine for engine in left if engine.name in plan.engines)
            logger.warning("plan %s (%s): trying without %s", plan, complaint, suspect.name)
            left.remove(suspect)


def untuned_plan(chain: Chain, problem: Problem, engines: Sequence[Engine]) -> Plan:
    """From the first operator on, the most preferred engine that runs what comes next, as far as it does in one piece.

    Raises:
        ValueError: no engine runs some operator.
    """
    preferred = preferred_engines(engines, problem)
    path: list[Span] = []
    names = []
    start = 0
    while start < len(chain):
        end, engine = _next(chain, start, problem, preferred)
        path.append((start, end))
        names.append(engine.name)
        start = end
    return Plan(len(chain), cuts_of(tuple(path)), tuple(names))


def preferred_engines(engines: Sequence[Engine], problem: Problem) -> list[Engine]:
    """The preferred engines for a device, the first of them first; tile variants in the order given."""
    order = PREFERRED.get(problem.device.type, OTHERWISE)
    known = [(order.index(kind), engine) for engine in engines if (kind := engine.name.partition(":")[0]) in order]
    return [engine for _, engine in sorted(known, key=lambda pair: pair[0])]


def _next(chain: Chain, start: int, problem: Problem, preferred: Sequence[Engine]) -> tuple[int, Engine]:
    """Where the segment ends, and what runs it. Plain PyTorch runs anything, so it only gets one operator at a time."""
    for engine in preferred:
        for end in range(start + 1 if engine.name == "torch" else len(chain), start, -1):
            if engine.refuses(chain.segment((start, end)), problem) is None:
                return end, engine
    raise ValueError(f"no engine runs {describe(chain.segment((start, start + 1)))} on {problem.device}")
