"""Builds models without memory for their weights and without initialising them: for loading and for counting.

The meta device alone would do, but normal_ on a meta tensor imports torch's compiler: one second of CPU time
and 150 MB in every process that loads a bundle.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
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
    )
)
"""What initialisers do to a tensor in place; on a tensor without memory it does nothing."""


@contextmanager
def weightless() -> Iterator[None]:
    """Inside, modules are built on the meta device and keep their initialisers from running."""
    with torch.device("meta"), _NoFills():
        yield


class _NoFills(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FILLS and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))
