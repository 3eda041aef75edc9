"""Runs a model's forward as a TorchScript graph: the same operations and the same bits, without Python between them.

Python gives its lock back and takes it again at every operation: the threads of a small model, the event loop and the
decoders then wait for each other more than they work. A TorchScript graph takes the lock not at all. It holds for one
input shape, which is all that forwards on a CPU have.

TorchScript never frees a graph. So one graph is kept for each kind of model, without weights, and every model of that
kind runs a copy of it with its own: to load a model again costs no more memory.
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

logger = logging.getLogger("milkweed.traced")

TensorFunction = Callable[[Tensor], Tensor]

OPTIMISED_AT = 3
"""The first call that runs the final graph: the first call profiles it, the second rewrites it."""

_SCRIPTS: dict[Hashable, Any] = {}
_lock = threading.Lock()


class TorchScriptError(RuntimeError):
    """A forward that TorchScript cannot record, or whose graph computes other bits."""


class TorchScriptForward:
    """Runs the TorchScript graph of a model, or the model itself where there is none; `reason` then says why.

    Args:
        model, shape, dtype: see `torchscript_forward`.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        self.reason: str | None = None
        self._forward: TensorFunction = model
        try:
            self._forward = torchscript_forward(model, shape, dtype)
        except TorchScriptError as error:
            self.reason = str(error)
            logger.warning("the forward runs in Python", extra={"event": {"reason": self.reason}})

    @property
    def summary(self) -> str:
        """One line for logs and the model list."""
        return "forward without Python" if self.reason is None else f"forward in Python: {self.reason}"

    def __call__(self, images: Tensor) -> Tensor:
        return self._forward(images)


def torchscript_forward(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> TensorFunction:
    """The TorchScript graph of a model in evaluation mode, for inputs of one shape and type; called in inference mode.

    It shares the model's parameters and buffers, and may be called by several threads at a time.

    Args:
        shape: shape of the input, with its batch axis; the input is on the CPU.

    Raises:
        TorchScriptError: nothing can be recorded, or the graph gives other bits than the model on two random inputs.
    """
    generator = torch.Generator().manual_seed(0)
    examples = [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]
    key = _key(model, examples[0])
    with torch.inference_mode(), _lock:
        expected = [model(example) for example in examples]
        if key in _SCRIPTS:
            known = _with_tensors(_SCRIPTS[key], model)
            if _gives(known, examples, expected):
                return known
        # No graph is known, or the models differ in something that the key does not show.
        script = _record(model, examples[0])
        forward = _with_tensors(script, model)
        if not _gives(forward, examples, expected):
            raise TorchScriptError("the recorded forward computes other bits")
        _SCRIPTS[key] = script
    return forward


def _record(model: nn.Module, example: Tensor) -> Any:
    """Record the graph, with empty tensors in the place of the model's."""
    try:
        with warnings.catch_warnings():
            # torch.jit.trace is deprecated in favour of exports that need Python or a compiler to run.
            warnings.simplefilter("ignore")
            script = cast(Any, torch.jit.trace)(model, example, check_trace=False)
        if script.inlined_graph.findAllNodes("prim::PythonOp"):
            raise TorchScriptError("a part of the forward is Python")
    except TorchScriptError:
        raise
    except Exception as error:  # whatever a model does that TorchScript cannot
        line = (str(error).strip() or repr(error)).splitlines()[0]
        raise TorchScriptError(f"{type(error).__name__}: {line}") from error
    _assign(script, model, lambda tensor: torch.empty(0, dtype=tensor.dtype))
    return script


def _with_tensors(script: Any, model: nn.Module) -> TensorFunction:
    """A copy of the graph with the model's tensors."""
    filled = copy.deepcopy(script)
    _assign(filled, model, lambda tensor: tensor)
    return cast(TensorFunction, filled)


def _assign(script: Any, model: nn.Module, chosen: Callable[[Tensor], Tensor]) -> None:
    """Set every parameter and buffer of the graph to what `chosen` gives for the model's."""
    for path, module in model.named_modules(remove_duplicate=False):
        part = functools.reduce(getattr, path.split(".") if path else (), script)._c
        for name, tensor in itertools.chain(module._parameters.items(), module._buffers.items()):
            if tensor is not None:
                part.setattr(name, chosen(tensor))


def _gives(forward: TensorFunction, examples: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether the final graph computes the expected bits."""
    try:
        for _ in range(OPTIMISED_AT - 1):
            forward(examples[0])
        return all(torch.equal(forward(x), y) for x, y in zip(examples, expected, strict=True))
    except RuntimeError:
        return False


def _key(model: nn.Module, example: Tensor) -> Hashable:
    """Everything that a graph depends on beside the tensors' values, as far as the model shows it."""
    tensors = itertools.chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )
    described = tuple((name, tuple(tensor.shape), tensor.stride(), tensor.dtype) for name, tensor in tensors)
    return repr(model), described, tuple(example.shape), example.dtype
