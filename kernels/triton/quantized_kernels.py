"""The Triton kernels of linear layers in 8 bits: rows to 8 bits, and the product with its epilogue.

They need triton 3.6 or later, and the tensor memory accelerator (Hopper).
"""

# mypy: ignore-errors
# Triton's language only looks like Python.

import triton
import triton.language as tl

from .kernels import _gelu, wait_for_previous_launch

__all__ = ["quantize_rows", "quantized_product"]


@triton.jit(do_not_specialize=["rows"])
def quantize_rows(
    x,  # (rows, C)
    weight,  # (C,) float32, as all below; any pointer without HAS_NORM
    bias,
    inverse,
    zero,
    y,  # (rows, C), 8 bits
    rows,
    C: tl.constexpr,
    EPS: tl.constexpr,
    HAS_NORM: tl.constexpr,
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
    if HAS_NORM:
        centred = tl.where(real[None, :], value - (tl.sum(value, 1) / C)[:, None], 0.0)
        rate = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / C + EPS)
        value = centred * rate[:, None] * tl.load(weight + c, mask=real, other=0.0)[None, :]
        value += tl.load(bias + c, mask=real, other=0.0)[None, :]
    tl.store(y + at, _quantized(value, inverse + c, zero + c, real, y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows"])
def quantized_product(
    x,  # the descriptor of (rows, K), 8 bits
    w,  # the descriptor of (N, K), of the same type
    scale,  # (N,) float32, as are bias, inverse and zero
    bias,
    inverse,  # any pointer where y is not in 8 bits, as is zero
    zero,
    residual,  # (rows, N), any pointer without HAS_RESIDUAL
    y,  # (rows, N)
    rows,
    N: tl.constexpr,
    K: tl.constexpr,
    ACT: tl.constexpr,
    INT8: tl.constexpr,
    OUT8: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    FAST_GELU: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute act(scale * x w^T + bias) + residual, rounded to the next layer's 8 bits with OUT8."""
    TILES: tl.constexpr = (N + BN - 1) // BN
    SUMS: tl.constexpr = tl.int32 if INT8 else tl.float32
    first_n = tl.program_id(0) % TILES * BN
    first_row = tl.program_id(0) // TILES * BM
    wait_for_previous_launch(PDL)
    sums = tl.zeros((BM, BN), SUMS)
    for k in range(0, K, BK):
        sums = tl.dot(x.load([first_row, k]), w.load([first_n, k]).T, sums, out_dtype=SUMS)
    n, row = first_n + tl.arange(0, BN), tl.arange(0, BM)
    real = n < N
    there = (first_row + row < rows)[:, None] & real[None, :]
    at = first_row.to(tl.int64) * N + (row[:, None] * N + n[None, :])
    value = sums.to(tl.float32) * tl.load(scale + n, mask=real, other=0.0)[None, :]
    value += tl.load(bias + n, mask=real, other=0.0)[None, :]
    if ACT:
        # Eight bits hold no more than bfloat16.
        value = _gelu(value, tl.bfloat16 if FAST_GELU else tl.float32)
    if HAS_RESIDUAL:
        value += tl.load(residual + at, mask=there, other=0.0).to(tl.float32)
    if OUT8:
        tl.store(y + at, _quantized(value, inverse + n, zero + n, real, y.dtype.element_ty), mask=there)
    else:
        tl.store(y + at, value.to(y.dtype.element_ty), mask=there)


@triton.jit
def _quantized(value, inverse, zero, real, dtype: tl.constexpr):
    """Round to 8 bits; halves to even, as a float32 does above 2^23."""
    value = value * tl.load(inverse, mask=real, other=0.0)[None, :]
    if dtype == tl.int8:
        value = value + tl.load(zero, mask=real, other=0.0)[None, :]
        value = tl.minimum(tl.maximum(value, 0.0), 255.0)
        return ((value + 12582912.0) - 12582912.0 - 128.0).to(tl.int8)
    return tl.minimum(tl.maximum(value, -448.0), 448.0).to(dtype)
