"""The Triton kernels of Monarch layers and of layers in 8 bits: products of blocks.

Permutations of a Monarch layer are column numbers.

They need triton 3.6 or later. Tuples hold values of which a program has several; the compiler unrolls them.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005
# Triton's language only looks like Python: its types are not those that a checker sees, and tuples do not unpack.

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["block_product", "descriptor", "quantize_rows", "wait_for_previous_launch"]


def descriptor(matrix: Any, block_rows: int, block_columns: int) -> Any:
    """Describe a contiguous matrix for the tensor memory accelerator, which loads zeros outside of it."""
    return TensorDescriptor.from_tensor(matrix, [block_rows, block_columns])


@triton.jit(do_not_specialize=["rows"])
def block_product(
    x,  # (rows, IN), or its descriptor
    w,  # (BLOCKS, N, DEPTH)
    w_tiles,  # with TMA the descriptor of (BLOCKS*N, DEPTH) in tiles of BN rows, else None
    w_rest,  # the same in tiles of REST rows; None where REST is 0
    scale,  # (BLOCKS, N) float32 where x and w are in 8 bits, else None
    bias,  # (BLOCKS, N) float32, or None
    residual,  # (rows, OUT), or None
    inverse,  # (OUT,) float32 where y is in 8 bits, as is zero (`_quantized`); else None
    zero,
    y,  # (rows, OUT)
    rows,
    IN: tl.constexpr,
    P: tl.constexpr,  # columns of x in a block; DEPTH is P rounded up
    DEPTH: tl.constexpr,
    BLOCKS: tl.constexpr,
    N: tl.constexpr,
    SEGMENT: tl.constexpr,
    BETWEEN_SEGMENTS: tl.constexpr,
    BETWEEN_BLOCKS: tl.constexpr,
    STEP: tl.constexpr,
    OUT: tl.constexpr,
    ACT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    REST: tl.constexpr,
    BK: tl.constexpr,
    TMA: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Multiply row n of block b of w by block b of x; the result goes to the column that `_column` returns.

    That is y = act(scale * x w^T + bias) + residual. A program computes BM rows and BN + REST columns of one block: the
    two parts share what it loads of x, and allow widths that are no power of two. With INTERLEAVED, where row n of a
    block goes to column n*BLOCKS + b, it computes BN columns of every block, which together are adjacent in y.
    """
    PARTS: tl.constexpr = BLOCKS if INTERLEAVED else (2 if REST > 0 else 1)
    NEXT: tl.constexpr = N if INTERLEAVED else BN  # rows of w from the start of a part to that of the next one
    WITHIN: tl.constexpr = 0 if INTERLEAVED else BN  # the same within a block
    APART: tl.constexpr = 1 if INTERLEAVED else BLOCKS  # blocks that have programs of their own
    TILES: tl.constexpr = (N + BN + REST - 1) // (BN + REST)
    SUMS: tl.constexpr = tl.int32 if w.dtype.element_ty == tl.int8 else tl.float32
    # Neighbouring programs read the same rows of x; all of w stays in the second-level cache anyway.
    program = tl.program_id(0)
    first_n = program % TILES * (BN + REST)
    block = program // TILES % APART
    first_row = program // (TILES * APART) * BM
    row, k = tl.arange(0, BM), tl.arange(0, BK)
    row_exists = first_row + row < rows
    _fetch(w, BLOCKS * N * DEPTH, PDL)
    wait_for_previous_launch(PDL)

    if not TMA:
        x_tile = x + first_row.to(tl.int64) * IN + (row[:, None] * IN + (block * P + k)[None, :])
    sums = ()
    for i in tl.static_range(PARTS):  # the second part of one block has REST columns, all others have BN
        sums = sums + (tl.zeros((BM, REST if REST * i else BN), SUMS),)
    for start in range(0, P, BK):
        added = ()
        for i in tl.static_range(PARTS):
            part = block * N + first_n + i * NEXT
            if TMA:
                if INTERLEAVED or i == 0:
                    a = x.load([first_row, (block + i) * P + start])
                tiles = w_rest if REST * i else w_tiles
                b = tiles.load([part, start]).T
            else:
                n = tl.arange(0, REST if REST * i else BN)
                there_x, there_w = row_exists[:, None], (first_n + i * WITHIN + n < N)[None, :]
                if P % BK != 0:
                    there_x = there_x & (start + k < P)[None, :]
                    there_w = there_w & (start + k < P)[:, None]
                if IN != BLOCKS * P:
                    there_x = there_x & ((block + i) * P + start + k < IN)[None, :]
                if INTERLEAVED or i == 0:
                    a = tl.load(x_tile + i * P + start, mask=there_x, other=0.0)
                w_tile = w + ((part + n)[None, :] * DEPTH + k[:, None])
                b = tl.load(w_tile + start, mask=there_w, other=0.0)
            added = added + (tl.dot(a, b, sums[i], out_dtype=SUMS),)
        sums = added

    parts = ()
    for i in tl.static_range(PARTS):
        n = first_n + tl.arange(0, REST if REST * i else BN)
        at, there = block * N + i * NEXT + n, n + i * WITHIN < N
        value = sums[i]
        if scale is not None:
            value = value.to(tl.float32) * tl.load(scale + at, mask=there, other=0.0)[None, :]
        if bias is not None:
            value += tl.load(bias + at, mask=there, other=0.0)[None, :]
        parts = parts + (_activate(value, ACT),)
    y += first_row.to(tl.int64) * OUT
    if residual is not None:
        residual += first_row.to(tl.int64) * OUT
    if INTERLEAVED:
        column = first_n * BLOCKS + tl.arange(0, BLOCKS * BN)
        _store(_interleave(parts, BLOCKS), y, residual, inverse, zero, row, column, row_exists, column < OUT, OUT)
    else:
        for i in tl.static_range(PARTS):
            n = first_n + i * BN + tl.arange(0, REST if REST * i else BN)
            column = _column(block, n, N, SEGMENT, BETWEEN_SEGMENTS, BETWEEN_BLOCKS, STEP)
            real = (n < N) & (column < OUT)
            _store(parts[i], y, residual, inverse, zero, row, column, row_exists, real, OUT)


@triton.jit
def _store(value, y, residual, inverse, zero, row, column, row_exists, column_exists, OUT: tl.constexpr):
    """Add the residual, round, and store rows of `column`s."""
    at, there = row[:, None] * OUT + column[None, :], row_exists[:, None] & column_exists[None, :]
    if residual is not None:
        value += tl.load(residual + at, mask=there, other=0.0).to(tl.float32)
    if inverse is not None:
        value = _quantized(value, inverse + column, zero + column, column_exists, y.dtype.element_ty)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=there)


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
    tl.store(y + at, _quantized(value, inverse + c, zero + c, real, y.dtype.element_ty), mask=there)


@triton.jit
def _fetch(w, NUMBERS: tl.constexpr, PDL: tl.constexpr):
    """Bring weights into the second-level cache while the launch before still runs; the programs share them.

    Weights are constants, but the launch before may be the one that packed them: so they are loaded after the wait for
    it, and only fetched before, since later writes are seen in that cache.
    """
    LINE: tl.constexpr = 1024 // w.dtype.element_ty.primitive_bitwidth  # numbers in 128 bytes
    if PDL:
        for line in range(tl.program_id(0) * 128, (NUMBERS + LINE - 1) // LINE, tl.num_programs(0) * 128):
            at = w + tl.minimum((line + tl.arange(0, 128)) * LINE, NUMBERS - 1)
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; // $0", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
            )


@triton.jit
def wait_for_previous_launch(PDL: tl.constexpr):
    """Wait until the launch before has written everything, then let the one behind be set up.

    The wait is not in a loop, since Triton's pipeliner would move loads over it (triton-lang/triton#11905).
    """
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _column(
    block, n, N: tl.constexpr, SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr, BLOCKS: tl.constexpr, STEP: tl.constexpr
):
    """Return where row n of a block goes: there may be gaps between segments of rows, blocks and single rows."""
    if SEGMENT == N:
        return block * BLOCKS + n * STEP
    return n // SEGMENT * SEGMENTS + block * BLOCKS + n % SEGMENT * STEP


@triton.jit
def _interleave(parts, COUNT: tl.constexpr):
    """Interleave parts: element n*COUNT + i of the result is element n of part i; COUNT is 1, 2, 4 or 8."""
    if COUNT == 1:
        return parts[0]
    elif COUNT == 2:
        return tl.interleave(parts[0], parts[1])
    elif COUNT == 4:
        return tl.interleave(tl.interleave(parts[0], parts[2]), tl.interleave(parts[1], parts[3]))
    else:
        even = _interleave((parts[0], parts[2], parts[4], parts[6]), 4)
        odd = _interleave((parts[1], parts[3], parts[5], parts[7]), 4)
        return tl.interleave(even, odd)


@triton.jit
def _activate(x, ACT: tl.constexpr):
    """Apply nothing (0), GELU (1), or GELU as exactly as bfloat16 holds it (2).

    GELU is x times the normal distribution's CDF: the polynomial of csrc/primitives.cuh.
    """
    tl.static_assert(ACT == 0 or ACT == 1 or ACT == 2)
    if ACT == 0:
        return x
    square = tl.minimum(x * x, 49.0)
    logit = x * (1.59501577 + square * (7.40112921e-2 + square * -7.03033584e-4))
    if ACT == 1:
        return x / (1.0 + tl.exp2(-1.4426950408889634 * logit))
    half = 0.5 * x
    # One special function instead of two.
    tanh = tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [0.5 * logit], dtype=tl.float32, is_pure=True, pack=1
    )
    return half + half * tanh


@triton.jit
def _quantized(value, inverse, zero, there, dtype: tl.constexpr):
    """Round to 8 bits, where `inverse` of each column is 1 / step; halves to even, as a float32 does above 2^23."""
    value = value * tl.load(inverse, mask=there, other=0.0)[None, :]
    if dtype == tl.int8:
        value = value + tl.load(zero, mask=there, other=0.0)[None, :]
        value = tl.minimum(tl.maximum(value, 0.0), 255.0)
        return ((value + 12582912.0) - 12582912.0 - 128.0).to(tl.int8)
    return tl.minimum(tl.maximum(value, -448.0), 448.0).to(dtype)
