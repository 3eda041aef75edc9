"""Modes, error limits and tensors between guards for the tests of emulated kernels."""

import math

import torch
from torch import Tensor

MODES = range(4)
"""Modes of the emulator: copies land at once or late, and warps run in turn or one runs ahead."""

DTYPES = (torch.bfloat16, torch.float16)
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 1e-3}
"""Largest relative error (Frobenius) against float64 on the same rounded inputs."""

GUARD = 256
"""Numbers around a tensor: NaN before the launch, untouched after it."""


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
