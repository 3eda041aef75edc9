"""A residual's addition and the layer norm behind it, as the CUDA kernel computes them in one launch."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .blocked import DTYPES, VECTOR

MAX_WIDTH = 1024
"""Numbers of a row that a warp has registers for."""


def add_layernorm_refusal(width: int, dtype: torch.dtype) -> str | None:
    """Return why the kernel does not take such rows, with the value and the limit; None if it does."""
    if dtype not in DTYPES:
        return f"dtype {dtype}: bfloat16 or float16 is needed"
    if width % VECTOR or not 0 < width <= MAX_WIDTH:
        return f"width {width}: a multiple of {VECTOR} up to {MAX_WIDTH} is needed"
    return None


def add_layernorm_reference(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Compute x + residual and its layer norm in plain PyTorch, rounding where the kernel does: once, at the end.

    Args:
        x, residual: (M, width).
        weight, bias: (width,), float32.

    Returns:
        (2, M, width), the dtype of x: the sums, then their norms.
    """
    sums = x.float() + residual.float()
    return torch.stack((sums, F.layer_norm(sums, weight.shape, weight, bias, eps))).to(x.dtype)
