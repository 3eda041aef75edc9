"""What a chain runs on that nobody measured: the impls made for its segments, in a fixed order of preference."""

import logging
from collections.abc import Sequence

import torch

from ..chain_ir import Problem, describe
from ..impls.base import Impl
from .chain import Chain, CompiledChain, compile_plan
from .plan import Plan, Span, cuts_of
from .verify import Oracle, failure

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


def untuned_chain(chain: Chain, problem: Problem, impls: Sequence[Impl]) -> CompiledChain:
    """The untuned plan, compiled, and held against the plain evaluation; an impl that gives no right values is left.

    Raises:
        ValueError: the impls that are right do not run all of the chain.
        TuningError: the device no longer works.
    """
    left = preferred_impls(impls, problem)
    with torch.no_grad():
        oracle = Oracle(chain.operators, chain.widths[0], chain.residual_width, problem, CHECKED_IMAGES)
        while True:
            plan = untuned_plan(chain, problem, left)
            try:
                compiled = compile_plan(chain, plan, problem, left)
                complaint = oracle.judge(compiled)
                if complaint is None:
                    return compiled
            except Exception as error:
                complaint = failure(f"plan {plan}", error, problem)
            suspect = next(impl for impl in left if impl.name in plan.impls)
            logger.warning("plan %s (%s): trying without %s", plan, complaint, suspect.name)
            left.remove(suspect)


def untuned_plan(chain: Chain, problem: Problem, impls: Sequence[Impl]) -> Plan:
    """From the first operator on, the most preferred impl that runs what comes next, as far as it does in one piece.

    Raises:
        ValueError: no impl runs some operator.
    """
    preferred = preferred_impls(impls, problem)
    path: list[Span] = []
    names = []
    start = 0
    while start < len(chain):
        end, impl = _next(chain, start, problem, preferred)
        path.append((start, end))
        names.append(impl.name)
        start = end
    return Plan(len(chain), cuts_of(tuple(path)), tuple(names))


def preferred_impls(impls: Sequence[Impl], problem: Problem) -> list[Impl]:
    """The preferred impls for a device, the first of them first; tile variants in the order given."""
    order = PREFERRED.get(problem.device.type, OTHERWISE)
    known = [(order.index(kind), impl) for impl in impls if (kind := impl.name.partition(":")[0]) in order]
    return [impl for _, impl in sorted(known, key=lambda pair: pair[0])]


def _next(chain: Chain, start: int, problem: Problem, preferred: Sequence[Impl]) -> tuple[int, Impl]:
    """Where the segment ends, and what runs it. Plain PyTorch runs anything, so it only gets one operator at a time."""
    for impl in preferred:
        for end in range(start + 1 if impl.name == "torch" else len(chain), start, -1):
            if impl.refuses(chain.segment((start, end)), problem) is None:
                return end, impl
    raise ValueError(f"no impl runs {describe(chain.segment((start, start + 1)))} on {problem.device}")
