"""The inner half of a Monarch MLP in Gluon, Triton's lower level, for Hopper: hidden activations stay on the chip.

    u[k] = sum over l of W3[k, l] gelu(W2[k, l] t[l] + bias[l, k])

Block l of t is what fc1's second factor reads, block k of the hidden features what fc2's first factor reads. A program
computes some rows of one block k. Each of its warpgroups multiplies 64 of these rows, out of step with the others, so
that the GELU of one is hidden under the products of another; one more warp loads tiles by TMA. Hidden features come in
chunks of 64: what a chunk needs of W2 and W3 is one stage of a ring.

It needs triton 3.6 to 3.9 (`linear.missing_for_gluon`). The tests interpret this file as it is, with planted bugs too
(tests/kernels/triton/gluon/interpreter.py).
"""

# mypy: ignore-errors
# ruff: noqa: RUF005
# Gluon only looks like Python: its types are not those that a checker sees, and tuples do not unpack.

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["descriptor", "inner_product"]

# triton 3.6 has another name for it
async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared

NBLOCKS = gl.constexpr(4)
SIDE = gl.constexpr(64)
"""Rows and columns of a tile: the rows of a warpgroup, and the columns that a swizzle of 128 bytes holds."""


def descriptor(matrix: Any, rows: int, columns: int) -> Any:
    """Describe a contiguous matrix of 16-bit numbers for TMA, in tiles of 64 columns; it loads zeros outside."""
    return TensorDescriptor.from_tensor(matrix, [rows, columns], gl.NVMMASharedLayout(128, 16, 2))


@gluon.jit(do_not_specialize=["rows"])
def inner_product(
    t,  # descriptor of (rows, 4*R)
    w2,  # descriptor of (4*4*S, R): rows of block l, and among these those of block k
    bias,  # (4, 4*S) float32, or None
    w3,  # descriptor of (4*Q, 4*S)
    u,  # (rows, 4*Q): row v of block k goes to column v // (Q/4) * Q + k * Q/4 + v % (Q/4)
    rows,
    SHAPE: gl.constexpr,  # R, S, Q
    RINGS: gl.constexpr,  # warpgroups, stages of t, stages of weights
    PDL: gl.constexpr,
):
    """Compute 64 rows for each warpgroup, of one block of u."""
    GROUPS: gl.constexpr = RINGS[0]
    k = gl.program_id(0) % NBLOCKS
    first = gl.program_id(0) // NBLOCKS * (GROUPS * SIDE)
    shared = _allocate_tiles(t, w2, w3, SHAPE, RINGS)
    barriers = (
        _barriers(RINGS[1], 1),
        _barriers(RINGS[1], GROUPS),
        _barriers(RINGS[2], 1),
        _barriers(RINGS[2], GROUPS),
    )
    _specialize(t, w2, bias, w3, u, shared, barriers, first, k, rows, SHAPE, RINGS, PDL)


@gluon.jit
def _specialize(
    t, w2, bias, w3, u, shared, barriers, first, k, rows, SHAPE: gl.constexpr, RINGS: gl.constexpr, PDL: gl.constexpr
):
    """Run the warpgroups and the warp that loads; registers of the first are what the others leave of 64 Ki."""
    if RINGS[0] == 2:
        gl.warp_specialize(
            [
                (_compute, (0, bias, u, shared, barriers, first, k, rows, SHAPE, RINGS)),
                (_compute, (1, bias, u, shared, barriers, first, k, rows, SHAPE, RINGS)),
                (_load, (t, w2, w3, shared, barriers, first, k, SHAPE, RINGS, PDL)),
            ],
            [4, 1],
            [216, 40],
        )
    else:
        gl.warp_specialize(
            [
                (_compute, (0, bias, u, shared, barriers, first, k, rows, SHAPE, RINGS)),
                (_compute, (1, bias, u, shared, barriers, first, k, rows, SHAPE, RINGS)),
                (_compute, (2, bias, u, shared, barriers, first, k, rows, SHAPE, RINGS)),
                (_load, (t, w2, w3, shared, barriers, first, k, SHAPE, RINGS, PDL)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )


@gluon.jit
def _allocate_tiles(t, w2, w3, SHAPE: gl.constexpr, RINGS: gl.constexpr):
    """Return shared memory: stages of t, of W2, of W3's first 128 rows and of its others, and hidden features."""
    TILES: gl.constexpr = SHAPE[0] // SIDE
    Q: gl.constexpr = SHAPE[2]
    WIDE: gl.constexpr = 128 if Q > 128 else Q
    ts = gl.allocate_shared_memory(t.dtype, [RINGS[1] * RINGS[0] * TILES, SIDE, SIDE], t.layout)
    w2s = gl.allocate_shared_memory(t.dtype, [RINGS[2] * TILES, SIDE, SIDE], w2.layout)
    wide = gl.allocate_shared_memory(t.dtype, [RINGS[2], WIDE, SIDE], w3.layout)
    narrow = wide
    if Q > WIDE:
        narrow = gl.allocate_shared_memory(t.dtype, [RINGS[2], Q - WIDE, SIDE], w3.layout)
    return ts, w2s, wide, narrow, gl.allocate_shared_memory(t.dtype, [RINGS[0], SIDE, SIDE], t.layout)


@gluon.jit
def _barriers(STAGES: gl.constexpr, COUNT: gl.constexpr):
    """Return a barrier for each stage of a ring, which ends a phase after COUNT arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(barriers.index(i), count=COUNT)
    return barriers


@gluon.jit
def _load(t, w2, w3, shared, barriers, first, k, SHAPE: gl.constexpr, RINGS: gl.constexpr, PDL: gl.constexpr):
    """Load every block of t and the weights of its chunks; those of the first chunk before anything else.

    The launch before is fc1's first factor. It did not end its own wait before all earlier launches were over, those
    that packed weights among them; so weights are loaded without a wait for it.
    """
    GROUPS: gl.constexpr = RINGS[0]
    CHUNKS: gl.constexpr = SHAPE[1] // SIDE
    TILES: gl.constexpr = SHAPE[0] // SIDE
    _load_weights(w2, w3, shared, barriers, 0, k, SHAPE, RINGS)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for l in range(NBLOCKS):
        slot = l % RINGS[1]
        full = barriers[0].index(slot)
        mbarrier.wait(barriers[1].index(slot), ((l // RINGS[1]) & 1) ^ 1)
        mbarrier.expect(full, GROUPS * TILES * SIDE * SIDE * 2)
        for i in gl.static_range(TILES):
            for group in gl.static_range(GROUPS):
                tile = shared[0].index((slot * GROUPS + group) * TILES + i)
                async_load(t, [first + group * SIDE, (l * TILES + i) * SIDE], full, tile)
        for s in range(CHUNKS):
            chunk = l * CHUNKS + s
            if chunk > 0:
                _load_weights(w2, w3, shared, barriers, chunk, k, SHAPE, RINGS)


@gluon.jit
def _load_weights(w2, w3, shared, barriers, chunk, k, SHAPE: gl.constexpr, RINGS: gl.constexpr):
    """Load what a chunk of hidden features needs of W2 (64, R) and W3 (Q, 64) into its stage of the ring."""
    TILES: gl.constexpr = SHAPE[0] // SIDE
    S: gl.constexpr = SHAPE[1]
    Q: gl.constexpr = SHAPE[2]
    WIDE: gl.constexpr = 128 if Q > 128 else Q
    stage = chunk % RINGS[2]
    full = barriers[2].index(stage)
    mbarrier.wait(barriers[3].index(stage), ((chunk // RINGS[2]) & 1) ^ 1)
    mbarrier.expect(full, (TILES * SIDE + Q) * SIDE * 2)
    l = chunk // (S // SIDE)
    start = chunk * SIDE - l * S
    for i in gl.static_range(TILES):
        async_load(w2, [(l * NBLOCKS + k) * S + start, i * SIDE], full, shared[1].index(stage * TILES + i))
    for i in gl.static_range(WIDE // SIDE):
        async_load(w3, [k * Q + i * SIDE, chunk * SIDE], full, shared[2].index(stage).slice(i * SIDE, SIDE, 0))
    for i in gl.static_range((Q - WIDE) // SIDE):
        tile = shared[3].index(stage).slice(i * SIDE, SIDE, 0)
        async_load(w3, [k * Q + WIDE + i * SIDE, chunk * SIDE], full, tile)


@gluon.jit
def _compute(GROUP: gl.constexpr, bias, u, shared, barriers, first, k, rows, SHAPE: gl.constexpr, RINGS: gl.constexpr):
    """Compute and store the rows of one warpgroup."""
    CHUNKS: gl.constexpr = SHAPE[1] // SIDE
    sums = _zero_sums(SHAPE)
    for l in range(NBLOCKS):
        slot = l % RINGS[1]
        mbarrier.wait(barriers[0].index(slot), (l // RINGS[1]) & 1)
        for s in range(CHUNKS):
            chunk = l * CHUNKS + s
            stage = chunk % RINGS[2]
            mbarrier.wait(barriers[2].index(stage), (chunk // RINGS[2]) & 1)
            h = _hidden(GROUP, shared, slot, stage, SHAPE, RINGS)
            # When these are done, so are the last chunk's with W3, which were issued before.
            done = warpgroup_mma_wait(0, deps=(h,) + sums)
            h, sums = done[0], done[1:]
            if chunk > 0:
                mbarrier.arrive(barriers[3].index((chunk - 1) % RINGS[2]))
            if bias is not None:  # loaded so late because with three warpgroups there are no registers for it before
                column = gl.arange(0, SIDE, gl.SliceLayout(0, _accumulators(SIDE)))
                h += gl.expand_dims(gl.load(bias + (l * NBLOCKS + k) * SHAPE[1] + s * SIDE + column), 0)
            p = shared[4].index(GROUP)
            p.store(_gelu(h).to(p.dtype))
            fence_async_shared()
            sums = _add_products(sums, p, shared, stage, SHAPE)
        mbarrier.arrive(barriers[1].index(slot))
    _store_sums(warpgroup_mma_wait(0, deps=sums), u, first + GROUP * SIDE, k, rows, SHAPE)


@gluon.jit
def _zero_sums(SHAPE: gl.constexpr):
    """Return zeros for 128 columns of u and for the others: wide products read their left operand less often."""
    Q: gl.constexpr = SHAPE[2]
    WIDE: gl.constexpr = 128 if Q > 128 else Q
    sums = (warpgroup_mma_init(gl.zeros([SIDE, WIDE], gl.float32, _accumulators(WIDE))),)
    if Q > WIDE:
        sums = sums + (warpgroup_mma_init(gl.zeros([SIDE, Q - WIDE], gl.float32, _accumulators(Q - WIDE))),)
    return sums


@gluon.jit
def _hidden(GROUP: gl.constexpr, shared, slot, stage, SHAPE: gl.constexpr, RINGS: gl.constexpr):
    """Begin the products of a warpgroup's t with a chunk of W2: (64, 64)."""
    TILES: gl.constexpr = SHAPE[0] // SIDE
    h = warpgroup_mma_init(gl.zeros([SIDE, SIDE], gl.float32, _accumulators(SIDE)))
    for i in gl.static_range(TILES):
        a = shared[0].index((slot * RINGS[0] + GROUP) * TILES + i)
        w = shared[1].index(stage * TILES + i).permute((1, 0))
        h = warpgroup_mma(a, w, h, use_acc=i > 0, is_async=True)
    return h


@gluon.jit
def _add_products(sums, p, shared, stage, SHAPE: gl.constexpr):
    """Begin the products of hidden features p (64, 64) with a chunk of W3."""
    added = (warpgroup_mma(p, shared[2].index(stage).permute((1, 0)), sums[0], is_async=True),)
    if SHAPE[2] > 128:
        added = added + (warpgroup_mma(p, shared[3].index(stage).permute((1, 0)), sums[1], is_async=True),)
    return added


@gluon.constexpr_function
def _accumulators(width):
    """Return the layout of a warpgroup's accumulators, 64 rows of so many columns."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])


@gluon.jit
def _store_sums(sums, u, first, k, rows, SHAPE: gl.constexpr):
    if SHAPE[2] > 128:
        _store(sums[0], u, 0, 128, first, k, rows, SHAPE[2])
        _store(sums[1], u, 128, SHAPE[2] - 128, first, k, rows, SHAPE[2])
    else:  # a wait for one value returns no tuple
        _store(sums, u, 0, SHAPE[2], first, k, rows, SHAPE[2])


@gluon.jit
def _store(value, u, FROM: gl.constexpr, WIDTH: gl.constexpr, first, k, rows, Q: gl.constexpr):
    """Round sums (64, WIDTH) of rows FROM and following of block k, and store them, 16 bytes at a time."""
    SEGMENT: gl.constexpr = Q // NBLOCKS
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // WIDTH, WIDTH // 8], [4, 1], [1, 0])
    row = first + gl.arange(0, SIDE, gl.SliceLayout(1, layout))
    v = FROM + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    column = v // SEGMENT * Q + k * SEGMENT + v % SEGMENT
    at = gl.expand_dims(row.to(gl.int64), 1) * (NBLOCKS * Q) + gl.expand_dims(column, 0)
    rounded = gl.convert_layout(value.to(u.dtype.element_ty), layout)
    gl.store(u + at, rounded, mask=gl.expand_dims(row < rows, 1))


@gluon.jit
def _gelu(x):
    """Multiply x by the normal distribution's CDF: the polynomial of csrc/primitives.cuh, as exact as bfloat16."""
    square = gl.minimum(x * x, 49.0)
    logit = x * (1.59501577 + square * (7.40112921e-2 + square * -7.03033584e-4))
    half = 0.5 * x
    tanh = gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [0.5 * logit], dtype=gl.float32, is_pure=True, pack=1
    )
    return half + half * tanh
