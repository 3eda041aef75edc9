"""Builds models on the meta device, without memory or initial values for weights, to load or to count them.

The meta device alone would do, but normal_ on a meta tensor imports torch's compiler: one second of CPU time
and 150 MB in every process that loads a bundle.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_FILLS = frozenset(
    (
        Tensor.normal_,
        Tensor.uniform_,
        Tensor.fill_,
        Tensor.zero_,
        Tensor.copy_,
        Tensor.add_,
        Tensor.mul_,
        Tensor.clamp_,
        Tensor.erfinv_,
        nn.init.kaiming_uniform_,
    )
)
"""In-place functions of initialisers; they do nothing to parameters and meta tensors here."""


@contextmanager
def on_meta() -> Iterator[None]:
    """Modules built in this context are on the meta device, and their initialisers do not run."""
    with torch.device("meta"), _NoFills():
        yield


def built_on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """The model that `build` builds, on the meta device except for buffers that are not in the state dict.

    For such buffers (timm's relative positions and window masks) the model is built once more, on the CPU, without
    initialising weights: memory that is never written is not taken.
    """
    with on_meta():
        model = build()
    stored = model.state_dict().keys()
    computed = [name for name, buffer in model.named_buffers() if buffer.is_meta and name not in stored]
    if computed:
        with _NoFills():
            values = dict(build().named_buffers())
        for name in computed:
            module, _, attribute = name.rpartition(".")
            model.get_submodule(module)._buffers[attribute] = values[name]
    return model


class _NoFills(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FILLS:
            filled = args[0] if args else kwargs["tensor"]
            if filled.is_meta or isinstance(filled, nn.Parameter):
                return filled
        return func(*args, **(kwargs or {}))
