"""A chain of operators, and a plan made ready to run it."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from ..chain_ir import Add, Attention, Dense, LayerNorm, Monarch, Operator, Problem, describe
from ..impls.base import Engine, Runner
from .plan import Plan, Span


class Chain:
    """A block's half: operators in order, checked to fit each other.

    Args:
        operators: at least one of known width.

    Raises:
        ValueError: no operators, or one whose input is not as wide as the output before it.
    """

    def __init__(self, operators: Iterable[Operator]) -> None:
        self.operators = tuple(operators)
        if not self.operators:
            raise ValueError("a chain needs at least one operator")
        self.widths = _widths(self.operators)
        self.residual_width = _residual_width(self.operators, self.widths)

    def __len__(self) -> int:
        return len(self.operators)

    def segment(self, span: Span) -> tuple[Operator, ...]:
        """The operators of a segment."""
        return self.operators[span[0] : span[1]]

    def describe(self) -> str:
        """Shapes and constants: two chains of equal text cost the same."""
        return describe(self.operators)


class CompiledChain:
    """A chain on the engines of a plan. Takes any batch; it was chosen for the problem's.

    Args:
        plan: what runs what.
        runners: one a segment.
        widths: of the chain's input and output.
    """

    def __init__(self, plan: Plan, problem: Problem, runners: Sequence[Runner], widths: tuple[int, int]) -> None:
        self.plan = plan
        self.problem = problem
        self.runners = tuple(runners)
        self.widths = widths

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x (B, N, C) -> (B, N, C'), of the problem's dtype; `residual` (B, N, C') is what the chain's Add adds.

        Raises:
            ValueError: an input of another width or dtype.
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
        """What it keeps on the device; chains compiled for other batches of the same layer share them."""
        found = {id(tensor): tensor for runner in self.runners for tensor in runner.tensors}
        return tuple(found.values())

    @property
    def resident_bytes(self) -> int:
        """Bytes of `tensors`."""
        return sum(tensor.nbytes for tensor in self.tensors)


def compile_plan(chain: Chain, plan: Plan, problem: Problem, engines: Sequence[Engine]) -> CompiledChain:
    """Build every segment of a plan.

    Raises:
        ValueError: the plan is of another chain, names an engine that is not there, or one that refuses its segment.
    """
    refusal = invalid(chain, plan, problem, engines)
    if refusal is not None:
        raise ValueError(refusal)
    named = {engine.name: engine for engine in engines}
    runners = [
        named[name].build(chain.segment(span), problem) for span, name in zip(plan.spans, plan.engines, strict=True)
    ]
    return CompiledChain(plan, problem, runners, (chain.widths[0], chain.widths[-1]))


def invalid(chain: Chain, plan: Plan, problem: Problem, engines: Sequence[Engine]) -> str | None:
    """Why a plan cannot run there; None when it can. Launches nothing."""
    if plan.length != len(chain):
        return f"plan {plan} is of {plan.length} operators, the chain has {len(chain)}"
    named = {engine.name: engine for engine in engines}
    for span, name in zip(plan.spans, plan.engines, strict=True):
        segment = chain.segment(span)
        reason = named[name].refuses(segment, problem) if name in named else "no such engine here"
        if reason is not None:
            return f"plan {plan}: {name} cannot run {describe(segment)}: {reason}"
    return None


def _widths(operators: Sequence[Operator]) -> tuple[int, ...]:
    """Features before each operator, and after the last."""
    takes, gives = zip(*(_in_out(operator) for operator in operators), strict=True)
    first = next((i for i, width in enumerate(takes) if width), None)
    if first is None:
        raise ValueError("no operator of the chain has a width")
    # What comes before the first operator of known width keeps widths as they are.
    widths = [takes[first]]
    for operator, taken, given in zip(operators, takes, gives, strict=True):
        if taken and taken != widths[-1]:
            raise ValueError(f"{operator.describe()} takes {taken} features and is given {widths[-1]}")
        widths.append(given or widths[-1])
    return tuple(widths)


def _residual_width(operators: Sequence[Operator], widths: Sequence[int]) -> int:
    """Features of the residual; 0 where nothing adds it."""
    found = {width for operator, width in zip(operators, widths, strict=False) if isinstance(operator, Add)}
    if len(found) > 1:
        raise ValueError(f"one residual cannot be added at widths {sorted(found)}")
    return found.pop() if found else 0


def _in_out(operator: Operator) -> tuple[int, int]:
    """Features an operator takes and gives; zeros where it takes any number and keeps it."""
    match operator:
        case LayerNorm(weight):
            return len(weight), len(weight)
        case Dense() | Monarch():
            return operator.in_features, operator.out_features
        case Attention(num_heads, head_dim):
            return 3 * num_heads * head_dim, num_heads * head_dim
        case _:
            return 0, 0
