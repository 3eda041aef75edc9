"""The Triton kernel that rounds rows to 8 bits; their product is `kernels.block_product`.

It needs triton 3.6 or later.
"""

# mypy: ignore-errors
# Triton's language only looks like Python.

import triton
import triton.language as tl

from .kernels import quantized, wait_for_previous_launch

__all__ = ["quantize_rows"]


@triton.jit(do_not_specialize=["rows"])
def quantize_rows(
    x,  # (rows, C)
    weight,  # (C,) float32, as all below, of a layer norm; None without
    bias,
    inverse,
    zero,
    y,  # (rows, C), 8 bits
    rows,
    C: tl.constexpr,
    EPS: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    PDL: tl.constexpr,
):
    """Round rows to 8 bits, behind their layer norm where there is one. A program does BR rows; BC is at least C."""
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.arange(0, BC)
    real = c < C
    there = (row < rows)[:, None] & real[None, :]
    at = row.to(tl.int64)[:, None] * C + c[None, :]
    wait_for_previous_launch(PDL)
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if weight is not None:
        centred = tl.where(real[None, :], value - (tl.sum(value, 1) / C)[:, None], 0.0)
        rate = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / C + EPS)
        value = centred * rate[:, None] * tl.load(weight + c, mask=real, other=0.0)[None, :]
        value += tl.load(bias + c, mask=real, other=0.0)[None, :]
    tl.store(y + at, quantized(value, inverse + c, zero + c, real, y.dtype.element_ty), mask=there)
