"""The Triton kernel that merges similar tokens: similarities, order and means in one launch.

It needs triton 3.6 or later. A program decides for one image which tokens merge, and computes a part of the columns.
"""

# mypy: ignore-errors
# Triton's language only looks like Python: its types are not those that a checker sees.

import triton
import triton.language as tl

from .kernels import wait_for_previous_launch

__all__ = ["merge_tokens"]


@triton.jit
def merge_tokens(
    x,  # (B, N, C)
    qkv,  # (B, N, 3, HEADS, D)
    sizes,  # (B, N) float32, or None: all 1
    y,  # (B, N - COUNT, C)
    new_sizes,  # (B, N - COUNT) float32
    N: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    PREFIX: tl.constexpr,
    COUNT: tl.constexpr,
    PROTECT: tl.constexpr,  # importance of the class token's attention, 0 for none
    SCALE: tl.constexpr,  # of its queries
    SET: tl.constexpr,  # tokens of a set, rounded up
    BD: tl.constexpr,
    HEAD: tl.constexpr,  # D, rounded up
    BC: tl.constexpr,
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Merge COUNT tokens of the first set (0, 2, 4, ... behind the prefix) into their nearest ones of the second.

    The second set begins with the prefix, into which nothing merges.
    """
    FIRST: tl.constexpr = (N - PREFIX + 1) // 2
    SECOND: tl.constexpr = PREFIX + (N - PREFIX) // 2
    KEPT: tl.constexpr = FIRST - COUNT
    image, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, SET)
    first, second = PREFIX + 2 * i, tl.where(i < PREFIX, i, 2 * i - PREFIX + 1)
    in_first, in_second = i < FIRST, i < SECOND
    wait_for_previous_launch(PDL)

    first_size, second_size = tl.full((SET,), 1.0, tl.float32), tl.full((SET,), 1.0, tl.float32)
    if sizes is not None:
        first_size = tl.load(sizes + image * N + first, mask=in_first, other=1.0)
        second_size = tl.load(sizes + image * N + second, mask=in_second, other=1.0)
    qkv += image * (N * 3 * HEADS * D)
    near, nearest = _nearest(qkv + HEADS * D, first, second, HEADS, D, FIRST, PREFIX, SECOND, BD)
    if PROTECT > 0:
        logs = (tl.log(first_size), tl.log(second_size))
        near -= PROTECT * (N - PREFIX) * _class_attention(qkv, first, second, logs, N, SCALE, HEADS, D, HEAD)
    near = tl.where(in_first, _nan_is_most(near), float("-inf"))
    before = (near[None, :] > near[:, None]) | ((near[None, :] == near[:, None]) & (i[None, :] < i[:, None]))
    merges = in_first & (tl.sum(before.to(tl.int32), axis=1) < COUNT)
    stays = in_first & (merges == 0)
    place, to = PREFIX + tl.cumsum(stays.to(tl.int32), 0) - 1, tl.where(i < PREFIX, i, KEPT + i)

    joins = merges[None, :] & (nearest[None, :] == i[:, None])
    weight = tl.where(joins, first_size[None, :], 0.0)
    total = second_size + tl.sum(weight, axis=1)
    if split == 0:
        out = new_sizes + image * (N - COUNT)
        tl.store(out + place, first_size, mask=stays)
        tl.store(out + to, total, mask=in_second)

    weight = (weight / total[:, None]).to(x.dtype.element_ty)
    share = second_size / total
    x += image * (N * C)
    y += image * ((N - COUNT) * C)
    for start in range(split * BC, C, SPLITS * BC):
        c = start + tl.arange(0, BC)[None, :]
        there = c < C
        at = first[:, None] * C + c
        # What does not merge is not read: zero times infinity would be NaN.
        means = tl.dot(weight, tl.load(x + at, mask=merges[:, None] & there, other=0.0))
        into = tl.load(x + second[:, None] * C + c, mask=in_second[:, None] & there, other=0.0).to(tl.float32)
        means += into * share[:, None]
        tl.store(y + to[:, None] * C + c, means.to(y.dtype.element_ty), mask=in_second[:, None] & there)
        kept = tl.load(x + at, mask=stays[:, None] & there, other=0.0)
        tl.store(y + place[:, None] * C + c, kept, mask=stays[:, None] & there)


@triton.jit
def _nearest(
    keys,
    first,
    second,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    FIRST: tl.constexpr,
    PREFIX: tl.constexpr,
    SECOND: tl.constexpr,
    BD: tl.constexpr,
):
    """Return each first token's largest cosine with a second one, and which that is: of equal ones the first.

    Products of rounded keys are exact in float32, so no tensor core rounds them.
    """
    SET: tl.constexpr = first.shape[0]
    i = tl.arange(0, SET)
    products = tl.zeros((SET, SET), tl.float32)
    squares, other_squares = tl.zeros((SET,), tl.float32), tl.zeros((SET,), tl.float32)
    for start in range(0, D, BD):
        mine = _mean_keys(keys, first, i < FIRST, start, HEADS, D, BD)
        other = _mean_keys(keys, second, i < SECOND, start, HEADS, D, BD)
        products = tl.dot(mine, tl.trans(other), products)
        squares += tl.sum(mine.to(tl.float32) * mine.to(tl.float32), axis=1)
        other_squares += tl.sum(other.to(tl.float32) * other.to(tl.float32), axis=1)
    lengths = tl.maximum(tl.sqrt(squares), 1e-12)[:, None] * tl.maximum(tl.sqrt(other_squares), 1e-12)[None, :]
    cosines = tl.where(((i >= PREFIX) & (i < SECOND))[None, :], _nan_is_most(products / lengths), float("-inf"))
    return tl.max(cosines, axis=1, return_indices=True)


@triton.jit
def _class_attention(
    qkv,
    first,
    second,
    logs,  # of the sizes of both sets
    N: tl.constexpr,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    HEAD: tl.constexpr,
):
    """Return the class token's attention to the first set, the mean over heads, rounded as torch rounds it."""
    d = tl.arange(0, HEAD)
    attention = tl.zeros(first.shape, tl.float32)
    for head in range(HEADS):
        query = tl.load(qkv + head * D + d, mask=d < D, other=0.0).to(tl.float32) * SCALE
        query = query.to(qkv.dtype.element_ty).to(tl.float32)[None, :]
        keys = qkv + (HEADS + head) * D
        scores = _scores(keys, query, logs[0], first, N, HEADS, D)
        others = _scores(keys, query, logs[1], second, N, HEADS, D)
        most = tl.maximum(tl.max(scores, 0), tl.max(others, 0))
        scores = tl.exp(scores - most)
        attention += scores / (tl.sum(scores, 0) + tl.sum(tl.exp(others - most), 0))
    return attention / HEADS


@triton.jit
def _scores(keys, query, logs, rows, N: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr):
    """Return the scores of some rows, minus infinity behind the last."""
    d = tl.arange(0, query.shape[1])[None, :]
    key = tl.load(keys + rows[:, None] * (3 * HEADS * D) + d, mask=(rows < N)[:, None] & (d < D), other=0.0)
    scores = tl.sum(key.to(tl.float32) * query, axis=1).to(keys.dtype.element_ty)
    scores += logs.to(keys.dtype.element_ty)
    return tl.where(rows < N, scores.to(tl.float32), float("-inf"))


@triton.jit
def _mean_keys(keys, rows, there, start, HEADS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Return the mean over heads of some columns of the keys, rounded as torch rounds it: (rows, BD)."""
    d = start + tl.arange(0, BD)
    at, there = keys + rows[:, None] * (3 * HEADS * D) + d[None, :], there[:, None] & (d < D)[None, :]
    sums = tl.load(at, mask=there, other=0.0).to(tl.float32)
    for head in range(1, HEADS):
        sums += tl.load(at + head * D, mask=there, other=0.0).to(tl.float32)
    return (sums / HEADS).to(keys.dtype.element_ty)


@triton.jit
def _nan_is_most(x):
    """Take NaN as the largest of all, as torch's max and sort do."""
    return tl.where(x != x, float("inf"), x)
