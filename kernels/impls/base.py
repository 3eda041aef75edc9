"""The protocol of an impl: it tells before any launch whether it can run a segment, and builds a runner for it."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from ..chain_ir import ChainOp, Packed, Problem, kinds, needed

# A runner's function: x (B, N, C) and the residual, which is None if the segment has no Add -> y (B, N, C').
Call = Callable[[Tensor, Tensor | None], Tensor]

OTHER_KIND = "another kind of segment"
"""The refusal of a segment that an impl was not made for; reports leave it out."""


@dataclass(frozen=True)
class Runner:
    """One segment, ready to run. It does not change its inputs.

    Args:
        call: computes the segment; it never synchronises, so that a CUDA graph can capture it.
        packed: the tensors it keeps on the device, which are counted and shared with other runners.
    """

    call: Call
    packed: tuple[Packed, ...] = ()

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.call(x, residual)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for packed in self.packed for tensor in packed.tensors)


class Impl(Protocol):
    """One way to run segments of some kinds.

    If it has kernels of its own, it also has a `build_id`, a hash of their sources: cached measurements are of those.
    """

    @property
    def name(self) -> str:
        """Unique, lower case; a tile variant ends in its number: `native_mlp:2`. Plans and caches contain it."""

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        """Return why it cannot run this segment there, in a few words; None if it can. Launches nothing.

        The answer is `OTHER_KIND` for segments that it never runs, whatever their sizes.
        """

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        """Build the runner of a segment that it does not refuse; packs weights on the problem's device."""


@dataclass(frozen=True)
class Tiled:
    """The common part of impls whose kernel has several tile variants.

    Args:
        tile: the variant. If it does not exist for a shape, or needs more shared memory than the device has, a call
            fails before it launches anything.
        build_id: hash of the sources of the kernels, `none` where there are none to run: equal sources compute and cost
            the same, whatever machine they were compiled on.
        on_cpu: take problems on the CPU too, for tests: the operators' CPU implementations compute the same from the
            same packed tensors.
    """

    tile: int
    build_id: str = ""
    on_cpu: bool = False

    kernel: ClassVar[str]
    """The family's name."""

    @property
    def name(self) -> str:
        return f"{self.kernel}:{self.tile}"

    def stands_in(self, problem: Problem) -> bool:
        """Whether the CPU implementation computes a problem."""
        return self.on_cpu and problem.device.type == "cpu"


LINEAR = {("monarch", *after) for after in ((), ("gelu",), ("add",), ("gelu", "add"))}
"""The kinds of a segment that a kernel for a Monarch layer runs."""


def family(name: str) -> str:
    """Return an impl's name without its tile: `native_mlp` for `native_mlp:3`."""
    return name.partition(":")[0]


def packed(
    operator: ChainOp, layout: str, problem: Problem, make: Callable[[], Sequence[Tensor | None]], *more: Hashable
) -> Packed:
    """Return the operator's tensors in a layout; calls `make` only if no living runner has them yet.

    So the runners of one layer for several batch sizes share its weights.

    Args:
        layout: name of the layout that `make` gives.
        make: makes the tensors; None, such as a bias that is not there, is left out.
        more: what else the result depends on, such as a second operator.
    """
    layouts = getattr(operator, "layouts", None)
    if layouts is None:
        raise TypeError(f"{operator.kind} has no tensors to pack")
    key = (layout, problem.dtype, str(problem.device), *more)
    layout_tensors = layouts.get(key)
    if layout_tensors is None:
        layout_tensors = layouts[key] = Packed([tensor.detach() for tensor in make() if tensor is not None])
    return layout_tensors


def on_rows(segment: Sequence[ChainOp], out_features: int, kernel: Call, *weights: Packed) -> Runner:
    """Make the runner of a kernel that takes rows (M, C), contiguous, and adds the residual where the segment does."""
    adds = kinds(segment)[-1] == "add"

    def rows_of(x: Tensor) -> Tensor:
        return x.reshape(-1, x.shape[-1]).contiguous()

    def call(x: Tensor, residual: Tensor | None) -> Tensor:
        y = kernel(rows_of(x), rows_of(needed(residual)) if adds else None)
        return y.view(*x.shape[:-1], out_features)

    return Runner(call, weights)
