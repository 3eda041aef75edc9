"""Correctness before any timing: every impl on every shape and ragged row count, against float64."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.chain_ir import Add, Attention, Gelu, LayerNorm, Operator, Problem, evaluate, kinds
from ...kernels.impls.base import Impl
from ...kernels.tuning.verify import relative_error
from .mlp import layers
from .rows import TOLERANCE
from .shapes import ATTENTION_SHAPES, MLP_SHAPES, MlpShape

ROWS = (1, 15, 16, 17, 197, 1577)

FEW_ROWS = (15, 1577)

# A launch function's own refusal names its kernel; what CUDA says does not, and is a failure.
REFUSED = re.compile(r"not launched: [a-z_ ]+: ")

ATTENTION_TOKENS = (1, 15, 16, 17, 50, 145, 196, 197, 256)


@dataclass(frozen=True)
class Check:
    """What one impl gave on one segment: its error, and whether a second run gave the same bits."""

    engine: str
    segment: str
    shape: str
    rows: int
    error: float
    repeatable: bool
    isolated: bool
    note: str = ""

    @property
    def passed(self) -> bool:
        return not self.note and self.repeatable and self.isolated


def checks(
    device: torch.device,
    dtype: torch.dtype,
    impls: Sequence[Impl],
    *,
    nblocks: int,
    shapes: Sequence[MlpShape] = MLP_SHAPES,
    rows: Sequence[int] = ROWS,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Iterator[Check]:
    """One check an impl, segment, shape and row count; stops where time runs out."""
    ours = [impl for impl in impls if impl.name.partition(":")[0] not in ("torch", "dense", "batched")]
    native = [impl for impl in ours if impl.name.startswith("native")]
    # Triton compiles at each first launch: it comes last, and an odd and a large number of rows must do.
    others, few = [impl for impl in ours if impl not in native], [count for count in rows if count in FEW_ROWS]
    for which, counts in ((native, rows), (others, few)):
        for shape, segment, problem in _cases(device, dtype, nblocks, shapes, counts):
            for impl in which:
                if out_of_time():
                    return
                if impl.refuses(segment, problem) is None:
                    check = _check(impl, segment, shape, problem)
                    if check is not None:
                        yield check


def _cases(
    device: torch.device, dtype: torch.dtype, nblocks: int, shapes: Sequence[MlpShape], rows: Sequence[int]
) -> Iterator[tuple[str, tuple[Operator, ...], Problem]]:
    for shape in shapes:
        for count in rows:
            problem = Problem(device, dtype, 1, count)
            fc1, fc2 = layers(shape, nblocks, problem)
            norm = LayerNorm(torch.randn(shape.width, device=device), torch.randn(shape.width, device=device), 1e-6)
            name = f"{shape.width}-{shape.hidden}"
            for segment in ((fc1,), (fc1, Gelu()), (fc2, Add()), (fc1, Gelu(), fc2), (norm, fc1, Gelu(), fc2, Add())):
                yield name, segment, problem
    for heads, head_dim in sorted({(shape.heads, shape.head_dim) for shape in ATTENTION_SHAPES}):
        for count in ATTENTION_TOKENS:
            attention = Attention(heads, head_dim, head_dim**-0.5)
            yield f"{heads}x{head_dim}", (attention,), Problem(device, dtype, 2, count)


def _check(impl: Impl, segment: Sequence[Operator], shape: str, problem: Problem) -> Check | None:
    """None where the kernel itself refuses the tile on this device."""
    x = torch.randn(problem.batch, problem.tokens, _width(segment), device=problem.device).to(problem.dtype)
    residual = None
    error, repeatable, isolated, note = float("inf"), False, False, ""
    try:
        truth = evaluate([operator for operator in segment if not isinstance(operator, Add)], x.double())
        if any(isinstance(operator, Add) for operator in segment):
            residual = torch.randn_like(truth, dtype=torch.float32).to(problem.dtype)
            truth = truth + residual.double()
        runner = impl.build(segment, problem)
        _poison(truth.numel() * x.itemsize, problem.device)
        y = runner(x, residual)
        error = relative_error(y, truth)
        repeatable = torch.equal(y, runner(x, residual))
        isolated = _isolated(runner, x, residual, y, segment)
        if error > TOLERANCE[problem.dtype]:
            note = f"relative error {error:.2e}: the limit is {TOLERANCE[problem.dtype]:.0e}"
    except Exception as failure:  # what the check is for
        if REFUSED.search(str(failure)):
            return None
        note = f"{type(failure).__name__}: {failure}".splitlines()[0][:200]
    return Check(impl.name, "+".join(kinds(segment)), shape, problem.rows, error, repeatable, isolated, note)


def _isolated(
    runner: Callable[[Tensor, Tensor | None], Tensor],
    x: Tensor,
    residual: Tensor | None,
    y: Tensor,
    segment: Sequence[Operator],
) -> bool:
    """A NaN in the last row (the last image, for an attention) changes no other row and is not lost."""
    with_nan = x.clone()
    with_nan[-1, -1, 0] = float("nan")
    z = runner(with_nan, residual)
    if any(isinstance(operator, Attention) for operator in segment):
        return bool(z[-1].isnan().any()) and torch.equal(z[:-1], y[:-1])
    rows, rows_before = z.flatten(0, 1), y.flatten(0, 1)
    return bool(rows[-1].isnan().any()) and torch.equal(rows[:-1], rows_before[:-1])


def _width(segment: Sequence[Operator]) -> int:
    first = segment[0]
    if isinstance(first, LayerNorm):
        return len(first.weight)
    if isinstance(first, Attention):
        return 3 * first.num_heads * first.head_dim
    return first.in_features if hasattr(first, "in_features") else 0


def _poison(nbytes: int, device: torch.device) -> None:
    """Leave NaN in the memory that the next allocation of this size is likely to get."""
    if device.type == "cuda":
        torch.full((nbytes,), 0xFF, dtype=torch.uint8, device=device)
