"""The plan of a chain that was not measured: impls in a fixed order of preference."""

import logging
from collections.abc import Sequence

import torch

from ..chain_ir import Problem, describe
from ..impls.base import Impl, family
from .chain import Chain, CompiledChain, compile_plan
from .plan import Plan, Span, cuts_of
from .verify import Oracle, failure

logger = logging.getLogger("milkweed.tuner")

PREFERRED = {
    # Strides instead of permutation copies: it was faster than dense on the CPUs that were measured (README).
    "cpu": ("feature_major", "dense", "torch"),
    # By the roofline, two batched products with copies between them are slower than dense, so dense comes before.
    "cuda": ("native_mlp", "native_attention", "triton_quantized", "triton_mlp", "triton", "dense", "torch"),
}
OTHERWISE = ("dense", "torch")

CHECKED_IMAGES = 4
"""Images of a batch on which an untuned plan is compared with the plain evaluation."""


def untuned_chain(chain: Chain, problem: Problem, impls: Sequence[Impl]) -> CompiledChain:
    """Compile the untuned plan and compare it with the plain evaluation; impls with wrong values are left out.

    Raises:
        ValueError: the impls with right values do not run all of the chain.
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
    """Cut the chain from its start: the most preferred impl that takes the next operator runs as many as it can.

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
    """Return the preferred impls for a device in order of preference; tile variants stay in the order given."""
    order = PREFERRED.get(problem.device.type, OTHERWISE)
    known = [(order.index(kind), impl) for impl in impls if (kind := family(impl.name)) in order]
    return [impl for _, impl in sorted(known, key=lambda pair: pair[0])]


def _next(chain: Chain, start: int, problem: Problem, preferred: Sequence[Impl]) -> tuple[int, Impl]:
    """Return where the segment ends and its impl. Plain PyTorch runs anything, so it gets one operator at a time."""
    for impl in preferred:
        for end in range(start + 1 if impl.name == "torch" else len(chain), start, -1):
            if impl.refuses(chain.segment((start, end)), problem) is None:
                return end, impl
    raise ValueError(f"no impl runs {describe(chain.segment((start, start + 1)))} on {problem.device}")
