"""What an engine is: it says before any launch whether it can run a segment, and builds a runner for it."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..chain_ir import Operator, Packed, Problem

# What a runner calls: x (B, N, C) and the residual, which is None where the segment has no Add -> y (B, N, C').
Call = Callable[[Tensor, Tensor | None], Tensor]

OTHER_KIND = "another kind of segment"
"""What an engine says of a segment that it was not made for: no news, so reports leave it out."""


@dataclass(frozen=True)
class Runner:
    """One segment, ready to run; reads its inputs and leaves them as they are.

    Args:
        call: the work; may be captured in a CUDA graph, so it never synchronises.
        packed: the tensors it keeps on the device, for accounting and so that other runners can share them.
    """

    call: Call
    packed: tuple[Packed, ...] = ()

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.call(x, residual)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for packed in self.packed for tensor in packed.tensors)


class Engine(Protocol):
    """One way to run segments of some kinds.

    One whose code is built apart from the package has a `build_id` too, which cached measurements belong to.
    """

    @property
    def name(self) -> str:
        """Lower case, unique; a tile variant ends in its number: `native_linear:2`. Part of plans and of caches."""

    def refuses(self, segment: Sequence[Operator], problem: Problem) -> str | None:
        """Why it cannot run this segment there, in a few words; None when it can. Launches nothing.

        Segments that it never runs, whatever their sizes, it refuses with `OTHER_KIND`.
        """

    def build(self, segment: Sequence[Operator], problem: Problem) -> Runner:
        """The runner of a segment it does not refuse; packs weights on the problem's device."""


def packed(
    operator: Operator, layout: str, problem: Problem, make: Callable[[], Sequence[Tensor]], *more: Hashable
) -> Packed:
    """The operator's tensors in a layout; made by `make` where no living runner has them yet.

    Batch buckets of one layer hold the same weights: they meet here.

    Args:
        layout: names what `make` makes.
        more: whatever else its result depends on, such as a second operator.
    """
    layouts = getattr(operator, "layouts", None)
    if layouts is None:
        raise TypeError(f"{operator.kind} has no tensors to pack")
    key = (layout, problem.dtype, str(problem.device), *more)
    found = layouts.get(key)
    if found is None:
        found = layouts[key] = Packed([tensor.detach() for tensor in make()])
    return found
