"""Rows of the MLP: dense and Monarch peers, each of our impls at its best, and what the tuner chose."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ....kernels.batched import monarch_batched
from ....kernels.chain_ir import Dense, Gelu, Monarch, Problem, evaluate
from ....kernels.impls.base import Impl, family
from ....kernels.reference import monarch_to_dense
from ....kernels.tuning.chain import Chain, compile_plan
from ....kernels.tuning.plan import Plan, Span, cuts_of, spans_of
from ....kernels.tuning.report import Row as Measured
from ....kernels.tuning.report import doubts
from ....kernels.tuning.tuner import tune_chain
from ..child import one_line
from ..goals import DENSE_COMPILED, DENSE_EAGER
from ..journal import Record
from .bench import Bench
from .measure import Candidate, Subject, Work, measure
from .shapes import SHAPE_ITEMSIZE, MlpShape, mlp_shape

WHOLE, HALVES = spans_of(0b00, 3), spans_of(0b10, 3)
"""fc1, GELU and fc2 in one launch; fc1 with its GELU, then fc2."""

PEERS = ("dense", "batched", "torch")
"""Impl families that anybody has: densified cuBLAS with its GELU epilogue, batched products, the plain operators."""


def layers(shape: MlpShape, nblocks: int, problem: Problem) -> tuple[Monarch, Monarch]:
    """Random Monarch fc1 and fc2 with fly's shapes, scaled so that activations keep their size."""

    def layer(width: int, out: int) -> Monarch:
        p, s = width // nblocks, out // nblocks
        q = min(p, s)
        w1 = torch.randn(nblocks, q, p, device=problem.device) / p**0.5
        w2 = torch.randn(nblocks, s, q, device=problem.device) / q**0.5
        bias = torch.randn(out, device=problem.device)
        return Monarch(w1.to(problem.dtype), w2.to(problem.dtype), bias.to(problem.dtype), width, out)

    return layer(shape.width, shape.hidden), layer(shape.hidden, shape.width)


def mlp_rows(name: str, batch: int, bench: Bench) -> list[Record]:
    """Make all rows of one shape and batch; the product's own tuner finds each family's best tiles, without a cache."""
    shape = mlp_shape(name)
    problem = Problem(bench.device, bench.dtype, batch, shape.tokens)
    fc1, fc2 = layers(shape, bench.nblocks, problem)
    chain = Chain((fc1, Gelu(), fc2))
    monarch, dense = mlp_work(shape, problem.rows, bench.nblocks, bench.dtype)

    def make_input() -> Tensor:
        return torch.randn(batch, shape.tokens, shape.width, device=bench.device).to(bench.dtype)

    eager = dense_eager(fc1, fc2, problem)
    candidates = [
        Candidate(DENSE_EAGER, False, eager, dense),
        Candidate("Monarch bmm eager", False, bmm_eager(fc1, fc2), monarch),
    ]
    skipped: dict[str, str] = {}
    compiled = compile_forward(eager, make_input())
    if isinstance(compiled, str):
        skipped[DENSE_COMPILED] = compiled
    else:
        candidates.append(Candidate(DENSE_COMPILED, False, compiled, dense))
    tuned = tune_chain(chain, problem, bench.impls)
    for kind, members in families(bench.impls).items():
        plan = best_plan(chain, members, tuned.rows)
        if isinstance(plan, str):
            skipped[kind] = plan
        elif plan is not None:
            forward, work = compile_plan(chain, plan, problem, members), dense if kind == "dense" else monarch
            candidates.append(Candidate(kind, kind not in PEERS, forward, work, str(plan), plan.impls))
    candidates.append(Candidate("tuned", True, tuned.chain, monarch, str(tuned.plan), tuned.plan.impls))
    subject = Subject("mlp", name, batch, make_input, lambda x: evaluate(chain.operators, x.double()))
    rows = measure(subject, candidates, bench, skipped=skipped)
    rows[0]["doubts"] = doubts(chain, problem, tuned.rows, tuned.plan)
    return rows


def mlp_work(shape: MlpShape, rows: int, nblocks: int, dtype: torch.dtype) -> tuple[Work, Work]:
    """Count the work of the Monarch MLP in one launch, and of the dense one in two.

    Args:
        rows: tokens of all images.
    """
    width = dtype.itemsize / SHAPE_ITEMSIZE
    monarch_bytes = shape.activation_bytes(rows) + shape.monarch_weight_bytes(nblocks)
    dense_bytes = shape.activation_bytes(rows) + shape.hidden_bytes(rows) + shape.dense_weight_bytes()
    monarch = Work(shape.monarch_flops(rows, nblocks), width * monarch_bytes)
    return monarch, Work(shape.dense_flops(rows), width * dense_bytes)


def dense_eager(fc1: Monarch, fc2: Monarch, problem: Problem) -> Callable[[Tensor], Tensor]:
    """Linear, GELU, Linear of the same function, as everybody writes it."""
    first, second = (densified(layer, problem) for layer in (fc1, fc2))

    def forward(x: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, first.weight, first.bias)), second.weight, second.bias)

    return forward


def densified(layer: Monarch, problem: Problem) -> Dense:
    """The dense layer of the same function, rounded to the problem's dtype."""
    weight = monarch_to_dense(layer.w1.float(), layer.w2.float(), layer.out_features, layer.in_features)
    return Dense(weight.to(problem.dtype), layer.bias)


def bmm_eager(fc1: Monarch, fc2: Monarch) -> Callable[[Tensor], Tensor]:
    """Two batched products and two permutation copies a layer, as Monarch code in PyTorch is written."""

    def linear(x: Tensor, layer: Monarch) -> Tensor:
        y = monarch_batched(x, layer.w1, layer.w2)
        return y if layer.bias is None else y + layer.bias

    def forward(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        return linear(F.gelu(linear(rows, fc1)), fc2).view(*x.shape[:-1], -1)

    return forward


def compile_forward(forward: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[Tensor], Tensor] | str:
    """Compile by torch.compile at its strongest, now; return the reason where it cannot."""
    if x.device.type != "cuda":
        return "compiled on GPUs alone"
    torch.compiler.reset()
    compiled = torch.compile(forward, mode="max-autotune-no-cudagraphs", fullgraph=True, dynamic=False)
    try:
        compiled(x)
    except Exception as error:  # a peer that does not compile is a row that says so
        return one_line(error)
    return compiled


def families(impls: Sequence[Impl]) -> dict[str, list[Impl]]:
    """Impls by name up to the colon: the tile variants of one kernel belong together."""
    grouped: dict[str, list[Impl]] = {}
    for impl in impls:
        grouped.setdefault(family(impl.name), []).append(impl)
    return grouped


def best_plan(chain: Chain, impls: Sequence[Impl], measured: Sequence[Measured]) -> Plan | str | None:
    """The fastest way to run the chain on these impls alone, whole or in two halves, by what the tuner measured.

    Returns:
        The plan; the reason where they cannot; None where they are made for something else.
    """
    names = {impl.name for impl in impls}
    rows = [row for row in measured if row.impl in names]
    ways: list[tuple[float, Plan]] = []
    for path in (WHOLE, HALVES):
        fastest = [min(timed, default=None) for timed in (_timed(rows, span) for span in path)]
        picked = [one for one in fastest if one is not None]
        if len(picked) == len(path):
            plan = Plan(len(chain), cuts_of(path), tuple(name for _, name in picked))
            ways.append((sum(seconds for seconds, _ in picked), plan))
    if ways:
        return min(ways, key=lambda way: way[0])[1]
    return "; ".join(dict.fromkeys(row.refused for row in rows if row.refused))[:300] or None


def _timed(rows: Sequence[Measured], span: Span) -> list[tuple[float, str]]:
    return [(row.seconds, row.impl) for row in rows if row.span == span and row.seconds is not None]
