"""The forward recorded as a TorchScript graph: the same operations, the same bits, without Python between them.

Python gives its lock back and takes it again at every operation; lanes of a small model, the event loop and the
decoders then wait for each other more than they work. A recorded graph takes the lock not at all. It holds for one
input shape, and that is what lanes on a CPU have.

TorchScript never frees what was recorded. So a graph is kept for each structure of
model and given the weights of whoever comes next: to load a model again costs nothing more.
"""

import copy
import functools
import itertools
import logging
import threading
import warnings
from collections.abc import Callable, Hashable
from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = ["TraceError", "TracedForward", "traced"]

logger = logging.getLogger("milkweed.traced")

Forward = Callable[[Tensor], Tensor]

OPTIMISED_AT = 3
"""The call from which on the graph runs as it always will: it is profiled in the first, rewritten in the second."""

_SKELETONS: dict[Hashable, Any] = {}
_lock = threading.Lock()


class TraceError(RuntimeError):
    """A forward that cannot be recorded, or whose record computes other bits."""


class TracedForward:
    """Runs the record of a model's forward, or the model itself where there can be none: `reason` says why.

    Args:
        model, shape, dtype: see `traced`.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        self.reason: str | None = None
        self._forward: Forward = model
        try:
            self._forward = traced(model, shape, dtype)
        except TraceError as error:
            self.reason = str(error)
            logger.warning("the forward runs in Python", extra={"event": {"reason": self.reason}})

    @property
    def summary(self) -> str:
        """In a line."""
        return "forward without Python" if self.reason is None else f"forward in Python: {self.reason}"

    def __call__(self, images: Tensor) -> Tensor:
        return self._forward(images)


def traced(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Forward:
    """The forward of a model in evaluation mode for inputs of one shape and type, to be called in inference mode.

    It shares the model's parameters and buffers, and may be called by several threads at a time.

    Args:
        shape: of the input, with its batch axis; on the CPU.

    Raises:
        TraceError: no record can be made, or it does not give the model's bits on two random inputs.
    """
    generator = torch.Generator().manual_seed(0)
    examples = [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]
    key = _structure(model, examples[0])
    with torch.inference_mode(), _lock:
        expected = [model(example) for example in examples]
        if key in _SKELETONS:
            known = _with_tensors(_SKELETONS[key], model)
            if _gives(known, examples, expected):
                return known
        # Nothing known, or something that the structure does not show is another.
        skeleton = _record(model, examples[0])
        found = _with_tensors(skeleton, model)
        if not _gives(found, examples, expected):
            raise TraceError("the recorded forward computes other bits")
        _SKELETONS[key] = skeleton
    return found


def _record(model: nn.Module, example: Tensor) -> Any:
    """The graph, with empty tensors for the model's."""
    try:
        with warnings.catch_warnings():
            # It is deprecated in favour of exports that need Python or a compiler to run; what it guesses is checked.
            warnings.simplefilter("ignore")
            script = cast(Any, torch.jit.trace)(model, example, check_trace=False)
        if script.inlined_graph.findAllNodes("prim::PythonOp"):
            raise TraceError("a part of the forward is Python")
    except TraceError:
        raise
    except Exception as error:  # whatever a model does that TorchScript cannot
        line = (str(error).strip() or repr(error)).splitlines()[0]
        raise TraceError(f"{type(error).__name__}: {line}") from error
    _assign(script, model, lambda tensor: torch.empty(0, dtype=tensor.dtype))
    return script


def _with_tensors(skeleton: Any, model: nn.Module) -> Forward:
    script = copy.deepcopy(skeleton)
    _assign(script, model, lambda tensor: tensor)
    return cast(Forward, script)


def _assign(script: Any, model: nn.Module, chosen: Callable[[Tensor], Tensor]) -> None:
    """Put a tensor in the place of each of the model's."""
    for path, module in model.named_modules(remove_duplicate=False):
        part = functools.reduce(getattr, path.split(".") if path else (), script)._c
        for name, tensor in itertools.chain(module._parameters.items(), module._buffers.items()):
            if tensor is not None:
                part.setattr(name, chosen(tensor))


def _gives(forward: Forward, examples: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether it computes the expected bits, once it runs as it always will."""
    try:
        for _ in range(OPTIMISED_AT - 1):
            forward(examples[0])
        return all(torch.equal(forward(x), y) for x, y in zip(examples, expected, strict=True))
    except RuntimeError:
        return False


def _structure(model: nn.Module, example: Tensor) -> Hashable:
    """What a graph depends on beside the tensors' values, as far as it can be seen."""
    tensors = itertools.chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )
    described = tuple((name, tuple(each.shape), each.stride(), each.dtype) for name, each in tensors)
    return repr(model), described, tuple(example.shape), example.dtype
