"""Builds models without memory for their weights and without initialising them: for loading and for counting.

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
"""What initialisers do to a tensor in place; on a parameter, or on a tensor without memory, it does nothing."""


@contextmanager
def on_meta() -> Iterator[None]:
    """Inside, modules are built on the meta device and keep their initialisers from running."""
    with torch.device("meta"), _NoFills():
        yield


def built_on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """What `build` builds, without memory but for the buffers that no state dict holds: those have their values.

    Where there are such (timm's relative positions and window masks) it is built once more for them, on the CPU, with
    weights that are not initialised: what is asked for and not written takes no memory.
    """
    with on_meta():
        model = build()
    stored = model.state_dict().keys()
    computed = [name for name, buffer in model.named_buffers() if buffer.is_meta and name not in stored]
    if computed:
        with _NoFills():
            values = dict(build().named_buffers())
        for name in computed:
            module, _, own = name.rpartition(".")
            model.get_submodule(module)._buffers[own] = values[name]
    return model


class _NoFills(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FILLS:
            filled = args[0] if args else kwargs["tensor"]
            if filled.is_meta or isinstance(filled, nn.Parameter):
                return filled
        return func(*args, **(kwargs or {}))
