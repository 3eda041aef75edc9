"""Rows of MLPs, of attention and of ViTAE's cells: peers, each of our impls at its best, and what the tuner chose."""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...kernels.attention import sdpa_attention
from ...kernels.chain_ir import Gelu, Monarch, Problem, SelfAttention, evaluate
from ...kernels.impls.base import family
from ...kernels.reference import monarch_batched, monarch_to_dense
from ...kernels.tuning.chain import Chain, compile_plan
from ...kernels.tuning.plan import Plan, Span, cheapest, cuts_of, spans_of
from ...kernels.tuning.report import Row
from ...kernels.tuning.tuner import tune_chain
from ...models.architectures.vitae.normal import NormalCell
from ...models.architectures.vitae.reduction import PerformerAttention
from ...models.serving.fused.alternatives import Part, joined
from ...models.serving.fused.branch import BranchPart, BranchResidual
from ...models.serving.fused.reduction import PerformerPart
from ...models.serving.fused.tokens import MergePart, MergeTokens
from ...models.serving.prepare import fold_batch_norms
from .journal import Record, one_line
from .measure import Bench, Candidate, Forward, Work, bench_of, measure
from .plan import (
    ATTENTION_SHAPES,
    BRANCHES,
    DENSE_COMPILED,
    DENSE_EAGER,
    DRY,
    MERGED,
    MERGES,
    MLP_SHAPES,
    PERFORMERS,
    MlpShape,
    Task,
)

SPANS = {*spans_of(0b00, 3), *spans_of(0b10, 3)}
"""fc1, GELU and fc2 in one launch; fc1 with its GELU, then fc2."""

PEERS = ("dense", "batched", "torch")
"""Impl families that anybody has: densified cuBLAS with its GELU epilogue, batched products, the plain operators."""

BACKENDS = {"SDPA cuDNN": "cudnn", "SDPA flash": "flash", "SDPA efficient": "efficient"}
"""Names of rows, and of backends as `sdpa_attention` has them."""

CELL_TOLERANCE = 2e-2
"""Relative error of a chain of several rounded operations, which PyTorch's own has too."""

Placed = TypeVar("Placed", bound=nn.Module)


@torch.inference_mode()
def mlp(task: Task, unit: str) -> list[Record]:
    """Make all rows of one shape and batch."""
    _, name, batch, _ = unit.split("/")
    return mlp_rows(name, int(batch), bench_of(task))


def mlp_rows(name: str, batch: int, bench: Bench) -> list[Record]:
    """Make all rows of one shape and batch; the product's own tuner finds each family's best tiles, without a cache."""
    shape = MLP_SHAPES[name]
    problem = Problem(bench.device, bench.dtype, batch, shape.tokens)
    fc1, fc2 = layers(shape, bench.nblocks, problem)
    chain, (monarch, dense) = Chain((fc1, Gelu(), fc2)), mlp_work(shape, problem.rows, bench.nblocks, bench.dtype)
    x = torch.randn(batch, shape.tokens, shape.width, device=bench.device).to(bench.dtype)
    eager = dense_eager(fc1, fc2, problem)
    candidates = [
        Candidate(DENSE_EAGER, False, eager, dense),
        Candidate("Monarch bmm eager", False, bmm_eager(fc1, fc2), monarch),
        Candidate(DENSE_COMPILED, False, compile_forward(eager, x), dense),
    ]
    tuned = tune_chain(chain, problem, bench.impls)
    for kind in dict.fromkeys(_candidate(impl.name) for impl in bench.impls):
        plan = best_plan([row for row in tuned.rows if _candidate(row.impl) == kind])
        work = dense if kind == "dense" else monarch
        if isinstance(plan, str):
            candidates.append(Candidate(kind, kind not in PEERS, plan, work))
        elif plan is not None:
            forward = compile_plan(chain, plan, problem, bench.impls)
            candidates.append(Candidate(kind, kind not in PEERS, forward, work, str(plan), plan.impls))
    candidates.append(Candidate("tuned", True, tuned.chain, monarch, str(tuned.plan), tuned.plan.impls))

    def truth(x: Tensor) -> Tensor:
        return evaluate(chain.operators, x.double())

    return measure(("mlp", name, batch), x, truth, candidates, bench)


def _candidate(impl: str) -> str:
    """Return the row that an impl is in: its family's, but each tile of the inner half has its own."""
    return impl if impl.startswith("gluon") else family(impl)


def mlp_work(shape: MlpShape, rows: int, nblocks: int, dtype: torch.dtype) -> tuple[Work, Work]:
    """Count the work of the Monarch MLP in one launch, and of the dense one in two.

    A Monarch layer has two factors, narrow x narrow and narrow x wide, of 1 / nblocks of a dense matrix's numbers. The
    input is read once and the output written once; two launches also write the hidden activations and read them back.

    Args:
        rows: tokens of all images.
    """
    narrow = min(shape.width, shape.hidden)
    monarch = 2 * narrow * (shape.width + shape.hidden) / nblocks
    dense = 2.0 * shape.width * shape.hidden
    ends, hidden = 2 * rows * shape.width, 2 * rows * shape.hidden
    return (
        Work(2 * rows * monarch, dtype.itemsize * (monarch + ends)),
        Work(2 * rows * dense, dtype.itemsize * (dense + ends + hidden)),
    )


def layers(shape: MlpShape, nblocks: int, problem: Problem) -> tuple[Monarch, Monarch]:
    """Make random Monarch fc1 and fc2 with fly's shapes, scaled so that activations keep their size."""

    def layer(width: int, out: int) -> Monarch:
        p, s = width // nblocks, out // nblocks
        q = min(p, s)
        w1 = torch.randn(nblocks, q, p, device=problem.device) / p**0.5
        w2 = torch.randn(nblocks, s, q, device=problem.device) / q**0.5
        bias = torch.randn(out, device=problem.device)
        return Monarch(w1.to(problem.dtype), w2.to(problem.dtype), bias.to(problem.dtype), width, out)

    return layer(shape.width, shape.hidden), layer(shape.hidden, shape.width)


def dense_eager(fc1: Monarch, fc2: Monarch, problem: Problem) -> Forward:
    """Make Linear, GELU, Linear of the same function, as everybody writes it."""

    first, second = (dense_weight(layer).to(problem.dtype) for layer in (fc1, fc2))
    return lambda x: F.linear(F.gelu(F.linear(x, first, fc1.bias)), second, fc2.bias)


def dense_weight(layer: Monarch) -> Tensor:
    """Multiply a layer out: (out, in) float32."""
    return monarch_to_dense(layer.w1.float(), layer.w2.float(), layer.out_features, layer.in_features)


def bmm_eager(fc1: Monarch, fc2: Monarch) -> Forward:
    """Make two batched products and two permutation copies a layer, as Monarch code in PyTorch is written."""

    def linear(x: Tensor, layer: Monarch) -> Tensor:
        y = monarch_batched(x, layer.w1, layer.w2)
        return y if layer.bias is None else y + layer.bias

    def forward(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        return linear(F.gelu(linear(rows, fc1)), fc2).view(*x.shape[:-1], -1)

    return forward


def compile_forward(forward: Forward, x: Tensor) -> Forward | str:
    """Compile by torch.compile at its strongest, now; return the reason where it cannot."""
    if x.device.type != "cuda":
        return "compiled on GPUs alone"
    torch.compiler.reset()
    compiled: Forward = torch.compile(forward, mode="max-autotune-no-cudagraphs", fullgraph=True, dynamic=False)
    try:
        compiled(x)
    except Exception as error:  # a peer that does not compile is a row that says so
        return one_line(error)
    return compiled


def best_plan(rows: Sequence[Row]) -> Plan | str | None:
    """Choose the fastest way to run the MLP on the impls of these rows alone, by what the tuner measured.

    Returns:
        The plan; the reason where they cannot; None where they are made for something else.
    """
    best: dict[Span, tuple[float, str]] = {}
    for row in rows:
        if row.seconds is not None and row.span in SPANS:
            best[row.span] = min(best.get(row.span, (inf, "")), (row.seconds, row.impl))
    for _, path in cheapest({span: seconds for span, (seconds, _) in best.items()}, 3):
        return Plan(3, cuts_of(path), tuple(best[span][1] for span in path))
    return "; ".join(dict.fromkeys(row.refused for row in rows if row.refused))[:300] or None


@torch.inference_mode()
def attention(task: Task, unit: str) -> list[Record]:
    """Make all rows of one shape and batch; every candidate takes packed qkv and gives (B, N, H*D)."""
    (_, shape, size, _), bench = unit.split("/"), bench_of(task)
    batch, (heads, head_dim, tokens) = int(size), ATTENTION_SHAPES[shape]
    operator = SelfAttention(heads, head_dim, head_dim**-0.5)
    problem = Problem(bench.device, bench.dtype, batch, tokens)
    # q, k, v are read once, the output written once.
    work = Work(4.0 * problem.rows * heads * tokens * head_dim, 2.0 * 4 * problem.rows * heads * head_dim)
    x = torch.randn(batch, tokens, 3 * heads * head_dim, device=bench.device).to(bench.dtype)
    pinned = partial(sdpa_attention, num_heads=heads, scale=operator.scale)
    candidates = [Candidate(peer, False, partial(pinned, backend=name), work) for peer, name in BACKENDS.items()]
    for impl in bench.impls:
        if family(impl.name) == "native_attention":
            forward = impl.refuses((operator,), problem) or impl.build((operator,), problem)
            candidates.append(Candidate(impl.name, True, forward, work, impls=(impl.name,)))

    def truth(x: Tensor) -> Tensor:
        return evaluate((operator,), x.double())

    return measure(("attention", shape, batch), x, truth, candidates, bench)


class Cell(NamedTuple):
    """A part of a cell, the tokens that it takes, and the work of one token."""

    part: Part
    tokens: int
    work: Work


def cell_of(name: str, bench: Bench) -> Cell:
    """Make the performer attention of a reduction cell, the branch of a normal one, or a merge of tokens."""
    if name in MERGES:
        shape = DRY if bench.dry else MERGES[name]
        heads, head_dim, tokens = ATTENTION_SHAPES[shape]
        width = heads * head_dim
        # Tokens and keys are read, and what is left is written; half of the patches meet the other half's keys.
        work = Work(2.0 * width * tokens / 4, 2.0 * (3 - MERGED) * width)
        return Cell(merge_part(shape, tokens, bench), tokens, work)
    if name in PERFORMERS:
        width, dim, tokens = PERFORMERS[name]
        cell = PerformerAttention(width, dim)
        nn.init.normal_(cell.w, std=0.5)
        placed = place(cell, bench)
        placed.w.data = cell.w.data.float().to(bench.device)
        # Each token: k, q and v read, the branch read, the result written; features and products of two passes.
        work = Work(8.0 * dim * dim / 2, 2.0 * 5 * dim)
        return Cell(PerformerPart(placed, bench.kernels()), 49 if bench.dry else tokens, work)
    width, heads, ratio, groups, shallow = BRANCHES[name]
    normal = NormalCell(width, heads, ratio, groups, shallow=shallow, class_token=shallow).eval()
    fold_batch_norms(normal)
    plain = BranchResidual(place(normal.PCM, bench), shallow)
    convs = [module for module in plain.branch if isinstance(module, nn.Conv2d)]
    work = Work(2.0 * sum(conv.weight.numel() for conv in convs), 2.0 * 2 * width)
    return Cell(BranchPart(plain, bench.kernels()), 14 * 14 + shallow, work)


def merge_part(shape: str, tokens: int, bench: Bench) -> MergePart:
    """Make the merge of a ViT's patch tokens, of which some stand for several."""
    heads, head_dim, _ = ATTENTION_SHAPES[shape]
    attention = SelfAttention(heads, head_dim, head_dim**-0.5)
    plain = MergeTokens(attention, heads * head_dim, 0.1, round(MERGED * (tokens - 1)), 1)
    return MergePart(plain, bench.kernels(), sized=True)


def place(module: Placed, bench: Bench) -> Placed:
    """Put a module on the device in eval mode and channels-last, as the fused forward has it."""
    return module.eval().requires_grad_(False).to(bench.device, bench.dtype).to(memory_format=torch.channels_last)


@torch.inference_mode()
def cells(task: Task, unit: str) -> list[Record]:
    """Make all rows of one cell and batch."""
    (_, name, size, _), bench = unit.split("/"), bench_of(task)
    batch, cell = int(size), cell_of(name, bench)
    part, problem = cell.part, Problem(bench.device, bench.dtype, batch, cell.tokens)
    (x, *more), right = part.truth(problem)

    def on(call: Callable[..., Any]) -> Forward:
        return lambda x: call(x, *more)

    work = Work(*(problem.rows * amount for amount in cell.work))
    candidates = [Candidate(way.name, way.name != "torch", on(way.call), work) for way in part.ways(problem)]
    candidates += [Candidate(name, True, reason, work) for name, reason in part.refused(problem).items()]
    return measure((part.kind, name, batch), x, lambda _: joined(right), candidates, bench, CELL_TOLERANCE)
