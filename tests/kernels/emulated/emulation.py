"""Calls of emulated kernels on tensors between guards, their modes, error limits, and what only full runs do."""

import ctypes
import math
import os
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from torch import Tensor

Build = Callable[..., ctypes.CDLL]

MODES = range(4)
"""Bit 0: asynchronous copies land at once, else as late as allowed; bit 1: one warp runs ahead, else in turn."""

DTYPES = (torch.bfloat16, torch.float16)
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 1e-3}
"""Largest relative error (Frobenius) against float64 on the same rounded inputs."""

GUARD = 256
"""Numbers around a tensor: NaN before the launch, untouched after it."""


FULL = pytest.mark.skipif(
    os.environ.get("MILKWEED_EMULATE") != "full", reason="it takes minutes: MILKWEED_EMULATE=full runs it"
)


def in_full_runs(names: Collection[str], slow: Collection[str]) -> list[Any]:
    """Return the names as parameters, of which only full runs take the slow ones."""
    return [pytest.param(name, marks=FULL if name in slow else ()) for name in names]


def launch(entry: Any, *arguments: Tensor | float | None) -> str | None:
    """Call an emulated kernel, tensors as pointers and floats as C's; return why it refused, or None."""
    entry.restype = ctypes.c_char_p
    error = entry(*map(_as_c, arguments))
    return None if error is None else error.decode()


def _as_c(argument: Tensor | float | None) -> Any:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_float(argument) if isinstance(argument, float) else argument


def relative_error(got: Tensor, truth: Tensor) -> float:
    """|got - truth| / |truth|, in float64; infinite where there is a NaN, which no comparison would find too large."""
    error = float((got.double() - truth).norm() / truth.norm())
    return math.inf if math.isnan(error) else error


def guarded(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of NaN in the middle of a larger one of NaN."""
    whole = torch.full((math.prod(shape) + 2 * GUARD,), math.nan, dtype=dtype)
    return whole[GUARD:-GUARD].view(shape)


def guards_untouched(tensor: Tensor) -> bool:
    """Whether the NaN around a `guarded` tensor are those it began with."""
    whole = tensor.new_empty(0).set_(tensor.untyped_storage(), 0, (tensor.numel() + 2 * GUARD,))
    fresh = torch.full((GUARD,), math.nan, dtype=tensor.dtype).view(torch.int16)
    return torch.equal(whole[:GUARD].view(torch.int16), fresh) and torch.equal(whole[-GUARD:].view(torch.int16), fresh)
