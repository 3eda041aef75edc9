"""A Triton kernel that is right and slow: ptxas serialises its products, since operands of some are in registers.

It is the inner half of a Monarch MLP, without bias, as one would write it in plain Triton: what `machine_code` is
for. Triton 3.6 makes code of it that ptxas does not serialise.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005

import triton
import triton.language as tl


@triton.jit
def serialised(t, w2, w3, u, CHUNKS: tl.constexpr, R: tl.constexpr, Q: tl.constexpr):
    """Multiply 128 rows of t (., R) by chunks of 64 rows of w2, and what comes out by chunks of w3 (Q, .)."""
    row, column = tl.arange(0, 128), tl.arange(0, 64)
    sums = ()
    for _ in tl.static_range(Q // 64):
        sums = sums + (tl.zeros((128, 64), tl.float32),)
    for chunk in tl.range(0, CHUNKS, num_stages=2):
        h = tl.zeros((128, 64), tl.float32)
        for i in tl.static_range(R // 64):
            h = tl.dot(t.load([tl.program_id(0) * 128, i * 64]), w2.load([chunk * 64, i * 64]).T, h)
        p = tl.maximum(h, 0.0).to(tl.bfloat16)
        added = ()
        for i in tl.static_range(Q // 64):
            added = added + (tl.dot(p, w3.load([i * 64, chunk * 64]).T, sums[i]),)
        sums = added
    for i in tl.static_range(Q // 64):
        at = (tl.program_id(0) * 128 + row[:, None]) * Q + (i * 64 + column)[None, :]
        tl.store(u + at, sums[i].to(tl.bfloat16))
