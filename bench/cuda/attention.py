"""Rows of the attention: PyTorch's backends, each pinned, and our short-sequence kernel's variants."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ...kernels.attention import sdpa_attention
from ...kernels.chain_ir import Attention, Problem, evaluate
from ...kernels.impls.base import Impl
from .ceilings import Ceilings
from .rows import Candidate, Row, Work, measure
from .shapes import AttentionShape
from .timing import Timer

PEERS = {"SDPA cuDNN": "cudnn", "SDPA flash": "flash", "SDPA efficient": "efficient", "SDPA math": "math"}
"""Names of rows, and of backends as `sdpa_attention` has them."""


def attention_rows(
    shape: AttentionShape,
    batch: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    impls: Sequence[Impl],
    timer: Timer,
    ceilings: Ceilings,
) -> list[Row]:
    """All rows of one shape and batch; every candidate takes packed qkv and gives (B, N, H*D)."""
    attention = Attention(shape.heads, shape.head_dim, shape.head_dim**-0.5)
    problem = Problem(device, dtype, batch, shape.tokens)
    work = Work(shape.flops(batch), shape.moved_bytes(batch))
    floor = ceilings.floor_us(*work)

    def make_input() -> Tensor:
        return torch.randn(batch, shape.tokens, 3 * shape.heads * shape.head_dim, device=device).to(dtype)

    candidates = [
        Candidate(name, False, partial(_pinned, attention, backend), floor, work=work)
        for name, backend in PEERS.items()
    ]
    skipped: dict[str, str] = {}
    for impl in impls:
        if not impl.name.startswith("native"):
            continue
        reason = impl.refuses((attention,), problem)
        if reason is None:
            candidates.append(Candidate(impl.name, True, impl.build((attention,), problem), floor, work=work))
        elif "attention" in impl.name:
            skipped[impl.name] = reason
    return measure(
        "attention",
        f"{shape.name} {shape.heads}x{shape.head_dim} N={shape.tokens}",
        batch,
        candidates,
        make_input,
        lambda x: evaluate((attention,), x.double()),
        timer=timer,
        ceilings=ceilings,
        skipped=skipped,
    )


def _pinned(attention: Attention, backend: str, qkv: Tensor) -> Tensor:
    return sdpa_attention(qkv, attention.num_heads, attention.scale, backend)
