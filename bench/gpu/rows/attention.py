"""Rows of the attention: PyTorch's backends, each pinned, and our short-sequence kernel's variants."""

from functools import partial

import torch
from torch import Tensor

from ....kernels.attention import sdpa_attention
from ....kernels.chain_ir import Attention, Problem, evaluate
from ..child import Measure, Task
from ..journal import Writer
from .bench import Bench, bench_of, write_rows
from .row import Candidate, Row, Work, measure
from .shapes import AttentionShape, attention_shape

PEERS = {"SDPA cuDNN": "cudnn", "SDPA flash": "flash", "SDPA efficient": "efficient", "SDPA math": "math"}
"""Names of rows, and of backends as `sdpa_attention` has them."""


def attention(task: Task, writer: Writer) -> Measure:
    """Return what measures the attention of a shape and batch."""
    bench = bench_of(task, writer)

    @torch.inference_mode()
    def measure_unit(unit: str) -> None:
        _, name, batch, _ = unit.split("/")
        write_rows(writer, unit, attention_rows(attention_shape(name), int(batch), bench))

    return measure_unit


def attention_rows(shape: AttentionShape, batch: int, bench: Bench) -> list[Row]:
    """Make all rows of one shape and batch; every candidate takes packed qkv and gives (B, N, H*D)."""
    operator = Attention(shape.heads, shape.head_dim, shape.head_dim**-0.5)
    problem = Problem(bench.device, bench.dtype, batch, shape.tokens)
    work = Work(shape.flops(batch), shape.moved_bytes(batch))
    floor = bench.ceilings.floor_us(*work)

    def make_input() -> Tensor:
        return torch.randn(batch, shape.tokens, 3 * shape.heads * shape.head_dim, device=bench.device).to(bench.dtype)

    candidates = [
        Candidate(name, False, partial(_pinned, operator, backend), floor, work=work) for name, backend in PEERS.items()
    ]
    skipped: dict[str, str] = {}
    for impl in bench.impls():
        if not impl.name.startswith("native"):
            continue
        reason = impl.refuses((operator,), problem)
        if reason is None:
            candidates.append(Candidate(impl.name, True, impl.build((operator,), problem), floor, work=work))
        elif "attention" in impl.name:
            skipped[impl.name] = reason
    return measure(
        "attention",
        shape.name,
        batch,
        candidates,
        make_input,
        lambda x: evaluate((operator,), x.double()),
        timer=bench.timer,
        ceilings=bench.ceilings,
        skipped=skipped,
    )


def _pinned(operator: Attention, backend: str, qkv: Tensor) -> Tensor:
    return sdpa_attention(qkv, operator.num_heads, operator.scale, backend)
