"""Rows of the attention: PyTorch's backends, each pinned, and our short-sequence kernel's variants."""

from functools import partial

import torch
from torch import Tensor

from ....kernels.attention import sdpa_attention
from ....kernels.chain_ir import Attention, Problem, evaluate
from ....kernels.impls.base import family
from ....kernels.tuning.chain import Chain
from ....kernels.tuning.plan import Plan
from ....kernels.tuning.report import Row as Measured
from ....kernels.tuning.report import doubts
from ..journal import Record
from .bench import Bench
from .measure import Candidate, Subject, Work, measure
from .shapes import attention_shape

PEERS = {"SDPA cuDNN": "cudnn", "SDPA flash": "flash", "SDPA efficient": "efficient"}
"""Names of rows, and of backends as `sdpa_attention` has them."""


def attention_rows(name: str, batch: int, bench: Bench) -> list[Record]:
    """Make all rows of one shape and batch; every candidate takes packed qkv and gives (B, N, H*D)."""
    shape = attention_shape(name)
    operator = Attention(shape.heads, shape.head_dim, shape.head_dim**-0.5)
    problem = Problem(bench.device, bench.dtype, batch, shape.tokens)
    work = Work(shape.flops(batch), shape.moved_bytes(batch))

    def make_input() -> Tensor:
        return torch.randn(batch, shape.tokens, 3 * shape.heads * shape.head_dim, device=bench.device).to(bench.dtype)

    candidates = [Candidate(peer, False, partial(_pinned, operator, PEERS[peer]), work) for peer in PEERS]
    skipped: dict[str, str] = {}
    for impl in bench.impls:
        if family(impl.name) == "native_attention":
            if reason := impl.refuses((operator,), problem):
                skipped[impl.name] = reason
            else:
                candidates.append(
                    Candidate(impl.name, True, impl.build((operator,), problem), work, impls=(impl.name,))
                )
    subject = Subject("attention", shape.name, batch, make_input, lambda x: evaluate((operator,), x.double()))
    rows = measure(subject, candidates, bench, skipped=skipped)
    timed = {_impl(row["candidate"]): row["us"] for row in rows if row["us"]}
    if timed:
        plan = Plan(1, 0, (min(timed, key=lambda name: timed[name]),))
        found = [Measured((0, 1), "attention", name, us) for name, us in timed.items()]
        rows[0]["doubts"] = doubts(Chain((operator,)), problem, found, plan)
    return rows


def _pinned(operator: Attention, backend: str, qkv: Tensor) -> Tensor:
    return sdpa_attention(qkv, operator.num_heads, operator.scale, backend)


def _impl(candidate: str) -> str:
    """The name of the impl that a candidate is."""
    return f"sdpa_{PEERS[candidate]}" if candidate in PEERS else candidate
