"""Rows of the attention: PyTorch's backends, each pinned, and our short-sequence kernel's variants."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...kernels.engines.base import Engine
from ...kernels.operators import Attention, Problem, evaluate, merge_heads, split_heads
from .ceilings import Ceilings
from .rows import Candidate, Row, measure
from .shapes import AttentionShape
from .timing import Timer

PEERS = {
    "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION,
    "SDPA math": SDPBackend.MATH,
}


def attention_rows(
    shape: AttentionShape,
    batch: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    engines: Sequence[Engine],
    timer: Timer,
    ceilings: Ceilings,
) -> list[Row]:
    """All rows of one shape and batch; every candidate takes packed qkv and gives (B, N, H*D)."""
    attention = Attention(shape.heads, shape.head_dim, shape.head_dim**-0.5)
    problem = Problem(device, dtype, batch, shape.tokens)
    floor = ceilings.floor_us(shape.flops(batch), shape.moved_bytes(batch))

    def make_input() -> Tensor:
        return torch.randn(batch, shape.tokens, 3 * shape.heads * shape.head_dim, device=device).to(dtype)

    candidates = [Candidate(name, False, Pinned(attention, backend), floor) for name, backend in PEERS.items()]
    skipped: dict[str, str] = {}
    for engine in engines:
        if not engine.name.startswith("native"):
            continue
        reason = engine.refuses((attention,), problem)
        if reason is None:
            candidates.append(Candidate(engine.name, True, engine.build((attention,), problem), floor))
        elif "attention" in engine.name:
            skipped[engine.name] = reason
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


class Pinned:
    """PyTorch's attention on packed qkv, held to one backend."""

    def __init__(self, attention: Attention, backend: SDPBackend) -> None:
        self._attention = attention
        self._backend = backend

    def __call__(self, qkv: Tensor) -> Tensor:
        with sdpa_kernel(self._backend):
            q, k, v = split_heads(qkv, self._attention)
            return merge_heads(F.scaled_dot_product_attention(q, k, v, scale=self._attention.scale))
