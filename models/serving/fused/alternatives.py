"""Chooses among a few ways to compute a part that is no chain, such as a convolution branch: right first, then fast.

The rules are those for chains: every way is compared with plain PyTorch, measured at load, and remembered.
"""

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ....kernels.chain_ir import Problem
from ....kernels.impls.quarantine import REASON, quarantine_refusal
from ....kernels.tuning.timing import Timed, timer_for
from ....kernels.tuning.tuner import bucket_of
from ....kernels.tuning.verify import TOLERANCE, failure, relative_error
from .device_kernels import DeviceKernels
from .tuning import Chosen, Tuning

logger = logging.getLogger("milkweed.fused")

PartCall = Callable[..., Any]
"""Computes a part: a tensor, or several."""


@dataclass(frozen=True)
class Alternative:
    """One way to compute a part.

    Args:
        name: for a chain its plan; else a lower-case word, which for a tile variant ends in its number.
        call: computes the part from its inputs.
        tensors: tensors that it keeps on the device.
        build_id: hash of the sources of the compiled code that it calls.
    """

    name: str
    call: PartCall
    tensors: tuple[Tensor, ...] = ()
    build_id: str = ""


class Bucketed(nn.Module):
    """A part with a way for each batch bucket; a batch runs as the nearest bucket above does.

    It belongs to the device and dtype its ways were made for: moving the module does not move their tensors.

    Args:
        ways: ways by batch size; at least one.
    """

    def __init__(self, ways: Mapping[int, Alternative]) -> None:
        super().__init__()
        self.ways = dict(sorted(ways.items()))
        # An attribute, so that memory accounting sees them; buckets of equal plans share tensors.
        self.tensors = tuple({id(t): t for way in self.ways.values() for t in way.tensors}.values())

    def forward(self, x: Tensor, *more: Tensor) -> Any:
        """Inputs (B, ...) as the part takes them. Batches above the largest bucket run as that does."""
        return self.ways[bucket_of(min(len(x), max(self.ways)), self.ways)].call(x, *more)

    def extra_repr(self) -> str:
        return ", ".join(f"{batch}: {way.name}" for batch, way in self.ways.items())


class Part(ABC):
    """A part of a model that can be computed in several ways; its tensors are on the device, shared by all buckets.

    Args:
        plain: the part in plain PyTorch, on the device, in the model's dtype.
    """

    kind: ClassVar[str]
    """The kind in the report: add_layernorm, branch, performer, merge."""

    family: ClassVar[str]
    """The name of the compiled kernels, without a tile."""

    def __init__(self, plain: nn.Module, kernels: DeviceKernels) -> None:
        self.plain, self.kernels = plain, kernels

    @abstractmethod
    def describe(self) -> str:
        """Its shapes in words, without values: parts of equal text cost the same."""

    @abstractmethod
    def refusal(self, problem: Problem) -> str | None:
        """Why the compiled kernels do not take it; None when they do. Nothing is launched."""

    @abstractmethod
    def native_ways(self, problem: Problem) -> list[Alternative]:
        """The ways by compiled kernels, preferred ones first, where nothing is refused."""

    @abstractmethod
    def input_widths(self) -> tuple[int, ...]:
        """Channels of each of its inputs (B, N, C)."""

    def ways(self, problem: Problem) -> list[Alternative]:
        """The ways, preferred ones first; the last is plain PyTorch, the reference."""
        native = [] if self.refusal(problem) is not None else self.native_ways(problem)
        allowed = [way for way in native if quarantine_refusal(way.name) is None]
        return [*allowed, Alternative("torch", self.plain, tensors_of(self.plain))]

    def refused(self, problem: Problem) -> dict[str, str]:
        """Why the compiled kernels run nothing of it, by their family's name; empty where one may."""
        reason = self.refusal(problem) or (REASON if len(self.ways(problem)) == 1 else None)
        return {} if reason is None else {self.family: reason}

    def truth(self, problem: Problem) -> tuple[tuple[Tensor, ...], Tensor]:
        """Random inputs, and the part's output for them, computed in float32."""
        inputs = self.random_inputs(problem)
        return inputs, joined(exact_copy(self.plain)(*(x.float() for x in inputs)))

    def random_inputs(self, problem: Problem) -> tuple[Tensor, ...]:
        """Random inputs of the problem's dtype."""
        generator = torch.Generator(problem.device).manual_seed(0)
        shapes = [(problem.batch, problem.tokens, width) for width in self.input_widths()]
        made = [torch.randn(shape, generator=generator, device=problem.device) for shape in shapes]
        return tuple(x.to(problem.dtype) for x in made)


def choose(part: Part, problem: Problem, tuning: Tuning) -> Chosen[Alternative]:
    """The fastest right way to compute a part; with tuning off, the first right one."""
    ways = part.ways(problem)
    if len(ways) == 1:
        return Chosen(ways[0], "untuned")
    discarded: list[str] = []
    inputs, want = part.truth(problem)
    right = [way for way in ways[:-1] if _is_right(way, inputs, want, problem, discarded)] + [ways[-1]]
    key = _key(part.describe(), problem, ways)
    entry = tuning.cache.get(key)
    named = {way.name: way for way in right}
    match entry:
        case {"engine": str(name), "seconds": float(seconds)} if name in named:
            return Chosen(named[name], "cached", seconds, tuple(discarded))
    if tuning.mode == "off" or len(right) == 1:
        return Chosen(right[0], "untuned", None, tuple(discarded))
    measure = tuning.measure or timer_for(problem.device)
    seconds_of = {way.name: measure(_timed(part, way, inputs)) for way in right}
    best = min(seconds_of, key=lambda name: seconds_of[name])
    tuning.cache.put(key, {"engine": best, "seconds": seconds_of[best]})
    return Chosen(named[best], "measured", seconds_of[best], tuple(discarded))


def _timed(part: Part, way: Alternative, inputs: Sequence[Tensor]) -> Timed:
    return Timed(f"{part.kind} {way.name}", lambda *_: way.call(*inputs), [(inputs[0], None)])


def _key(text: str, problem: Problem, ways: Sequence[Alternative]) -> str:
    """Return the key of a measurement in the cache: shapes and sources without versions, as `tuning_key` says."""
    return ";".join((text, problem.describe(), ",".join(f"{way.name}={way.build_id}" for way in ways)))


def _is_right(way: Alternative, inputs: Sequence[Tensor], want: Tensor, problem: Problem, discarded: list[str]) -> bool:
    """Whether a way gives `want`; where it does not, the reason goes to `discarded` and the log.

    Raises:
        TuningError: the device no longer works.
    """
    try:
        error = relative_error(joined(way.call(*inputs)), want)
        complaint = None if error <= TOLERANCE[problem.dtype] else f"relative error {error:.1e}"
    except Exception as exception:
        complaint = failure(way.name, exception, problem)
    if complaint is not None:
        logger.warning("%s is left out: %s", way.name, complaint)
        discarded.append(f"{way.name}: {complaint}")
    return complaint is None


def joined(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Return a part's result in one tensor, also where there are several: tokens and their sizes side by side."""
    if isinstance(result, Tensor):
        return result
    same = len({tensor.shape for tensor in result}) == 1
    return torch.stack(result) if same else torch.cat(result, dim=-1)


def tensors_of(module: nn.Module) -> tuple[Tensor, ...]:
    """A module's parameters and buffers; packed layers keep theirs in buffers."""
    return (*module.parameters(), *module.buffers())


def exact_copy(module: nn.Module) -> nn.Module:
    """A float32 copy of a module, with the weights as they are rounded."""
    return copy.deepcopy(module).float()
