"""A chain of operators, and the chain compiled by a plan."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from ..chain_ir import Add, ChainOp, LayerNorm, Linear, Problem, SelfAttention, describe, knows_sizes
from ..impls.base import Impl, Runner
from ..quantized import QuantizedDense
from .plan import Plan, Span


class Chain:
    """Half of a transformer block: operators in order, checked to fit each other.

    Args:
        operators: at least one of them has a known width.

    Raises:
        ValueError: there are no operators, the input of one is not as wide as the output before it, or there are two
            different tensors to read.
    """

    def __init__(self, operators: Iterable[ChainOp]) -> None:
        self.operators = tuple(operators)
        if not self.operators:
            raise ValueError("a chain needs at least one operator")
        self.widths = _widths(self.operators)
        self.residual_width = _residual_width(self.operators, self.widths)

    def __len__(self) -> int:
        return len(self.operators)

    def segment(self, span: Span) -> tuple[ChainOp, ...]:
        """Return the operators of a segment."""
        return self.operators[span[0] : span[1]]

    def describe(self) -> str:
        """Return shapes and constants; chains of equal text cost the same."""
        return describe(self.operators)


class CompiledChain:
    """A chain that runs on the impls of a plan. It takes any batch, but was chosen for the problem's.

    Args:
        plan: the segments and their impls.
        runners: one for each segment.
        widths: features of the chain's input and output.
    """

    def __init__(self, plan: Plan, problem: Problem, runners: Sequence[Runner], widths: tuple[int, int]) -> None:
        self.plan = plan
        self.problem = problem
        self.runners = tuple(runners)
        self.widths = widths

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Run x (B, N, C) -> (B, N, C'), in the problem's dtype; `residual` is what its Add adds, or log-sizes (B, N).

        Raises:
            ValueError: the input has another width or dtype.
        """
        if x.shape[-1] != self.widths[0] or x.dtype != self.problem.dtype or x.dim() != 3:
            raise ValueError(
                f"input {tuple(x.shape)} of {x.dtype}: the chain takes (B, N, {self.widths[0]}) of {self.problem.dtype}"
            )
        for runner in self.runners:
            x = runner(x, residual)
        return x

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Tensors that it keeps on the device, and shares with chains of the same layer for other batches."""
        tensors = {id(tensor): tensor for runner in self.runners for tensor in runner.tensors}
        return tuple(tensors.values())

    @property
    def resident_bytes(self) -> int:
        """Bytes of `tensors`."""
        return sum(tensor.nbytes for tensor in self.tensors)


def compile_plan(chain: Chain, plan: Plan, problem: Problem, impls: Sequence[Impl]) -> CompiledChain:
    """Build every segment of a plan.

    Raises:
        ValueError: the plan is for another chain, or an impl of it does not exist or refuses its segment.
    """
    refusal = invalid(chain, plan, problem, impls)
    if refusal is not None:
        raise ValueError(refusal)
    named = {impl.name: impl for impl in impls}
    runners = [
        named[name].build(chain.segment(span), problem) for span, name in zip(plan.spans, plan.impls, strict=True)
    ]
    return CompiledChain(plan, problem, runners, (chain.widths[0], chain.widths[-1]))


def invalid(chain: Chain, plan: Plan, problem: Problem, impls: Sequence[Impl]) -> str | None:
    """Return why a plan cannot run there; None if it can. Launches nothing."""
    if plan.length != len(chain):
        return f"plan {plan} is of {plan.length} operators, the chain has {len(chain)}"
    named = {impl.name: impl for impl in impls}
    for span, name in zip(plan.spans, plan.impls, strict=True):
        segment = chain.segment(span)
        reason = named[name].refuses(segment, problem) if name in named else "no such impl here"
        if reason is not None:
            return f"plan {plan}: {name} cannot run {describe(segment)}: {reason}"
    return None


def _widths(operators: Sequence[ChainOp]) -> tuple[int, ...]:
    """Return the features before each operator and after the last one."""
    takes, gives = zip(*(_in_out(operator) for operator in operators), strict=True)
    first = next((i for i, width in enumerate(takes) if width), None)
    if first is None:
        raise ValueError("no operator of the chain has a width")
    # Operators before the first one of known width do not change the width.
    widths = [takes[first]]
    for operator, reads, writes in zip(operators, takes, gives, strict=True):
        if reads and reads != widths[-1]:
            raise ValueError(f"{operator.describe()} takes {reads} features and is given {widths[-1]}")
        widths.append(writes or widths[-1])
    return tuple(widths)


def _residual_width(operators: Sequence[ChainOp], widths: Sequence[int]) -> int:
    """Return the features of the residual; 0 if nothing adds it."""
    added = {width for operator, width in zip(operators, widths, strict=False) if isinstance(operator, Add)}
    if len(added) > 1:
        raise ValueError(f"one residual cannot be added at widths {sorted(added)}")
    if added and knows_sizes(operators):
        raise ValueError("a chain cannot both add a residual and know sizes")
    return added.pop() if added else 0


def _in_out(operator: ChainOp) -> tuple[int, int]:
    """Return the features that an operator takes and gives; zeros if it takes any number and keeps it."""
    match operator:
        case LayerNorm(weight):
            return len(weight), len(weight)
        case _ if isinstance(operator, Linear | QuantizedDense):
            return operator.in_features, operator.out_features
        case SelfAttention(num_heads, head_dim):
            return 3 * num_heads * head_dim, num_heads * head_dim
        case _:
            return 0, 0
