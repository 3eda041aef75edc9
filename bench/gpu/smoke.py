"""Checks one operator before anything is timed: every tile on few and many rows against float64.

A result must be near float64's, the same bits twice, and written wholly: memory is poisoned before. A NaN in the last
row (the last image, where an operator mixes rows) must stay there and not be lost.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ...kernels.chain_ir import Add, Attention, Gelu, LayerNorm, Operator, Problem, evaluate, kinds, needed
from ...kernels.impls.base import OTHER_KIND, Impl, family
from ...kernels.impls.native import native_impls
from ...kernels.impls.triton import triton_impls
from ...kernels.tuning.chain import Chain
from ...kernels.tuning.verify import relative_error
from ...models.serving.fused.alternatives import exact_copy
from .child import Measure, Task, attempt
from .journal import Absent, Writer, ends
from .plan import TRITON
from .rows.bench import Bench, bench_of
from .rows.cells import CELL_TOLERANCE, Cell, cell_of, exact, on
from .rows.measure import TOLERANCE
from .rows.mlp import layers
from .rows.shapes import ATTENTION_SHAPES, BRANCHES, DRY, DRY_MLP, GOAL_SHAPES, PERFORMERS, mlp_shape

ROWS = (1, 17, 197, 6304)
"""Rows of products; an attention, which takes images of at most 256 tokens, has so many tokens in all."""

MANY_ROWS = 128 * 197
"""Rows of the goals' largest batch."""

IMAGES = ((2, 1), (2, 17), (2, 197), (32, 197))
CELL_BATCHES = (2, 32)

TILE_SECONDS, TRITON_TILE_SECONDS = 15.0, 60.0
"""A tile that takes longer hangs; Triton may have to compile many kernels for one."""

# A launch function's own refusal of a tile names its kernel; what CUDA says does not, and is a failure.
REFUSED = re.compile(r"not launched: [a-z_ ]+: ")

Call = Callable[[Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Case:
    """One tile on one problem.

    Args:
        make: builds what is checked, so that a failed packing is that of its tile.
        truth: the right answer for x and the residual, in a wider type.
        adds: width of the residual that it adds; 0 for none.
        mixes_rows: rows of an image depend on each other.
    """

    tile: str
    what: str
    shape: tuple[int, int, int]
    make: Callable[[], Call]
    truth: Call
    tolerance: float
    adds: int = 0
    mixes_rows: bool = False


def smoke(task: Task, writer: Writer) -> Measure:
    """Return what checks an operator: each of its tiles is a unit of its own, so that a fault is that tile's.

    Tiles that an earlier process of this run checked, or died at, are left out.
    """
    bench = bench_of(task, writer)

    @torch.inference_mode()
    def measure(unit: str) -> None:
        operator = unit.partition("/")[2]
        found: dict[str, list[Case]] = {}
        for case in cases(operator, bench):
            found.setdefault(case.tile, []).append(case)
        if not found:
            raise Absent(why_absent(operator, bench))
        ended = ends(writer.journal.read())
        for tile, of_tile in found.items():
            name = f"{unit}/{tile}"
            if name not in ended:
                limit = min(TRITON_TILE_SECONDS if operator in TRITON else TILE_SECONDS, task.unit_limit)
                attempt(writer, name, limit, partial(check_all, of_tile, bench, writer, name))

    return measure


def check_all(of_tile: Sequence[Case], bench: Bench, writer: Writer, unit: str) -> None:
    """Check a tile, one line in the journal for each case."""
    for case in of_tile:
        writer.journal.case(unit, case.what)
        checked = check(case, bench)
        if checked is not None:
            writer({"kind": "check", "unit": unit, "what": case.what, **checked})


def cases(operator: str, bench: Bench, rows: Sequence[int] = ROWS) -> Iterator[Case]:
    """All cases of an operator that it does not refuse."""
    if operator in ("native_performer", "native_branch"):
        names = list(PERFORMERS if operator == "native_performer" else BRANCHES)
        for name in names[:1] if bench.dry else names:
            yield from _cell_cases(cell_of(name, bench), bench)
        return
    if operator == "native_add_layernorm" and (bench.dry or not bench.kernels().refusal):
        yield from _norm_cases(bench, rows)
    for impl in impls_of(operator, bench):
        for segment, problem, shape in _segments(bench, rows):
            if impl.refuses(segment, problem) is None:
                yield _segment_case(impl, segment, problem, shape)


def impls_of(operator: str, bench: Bench) -> list[Impl]:
    """Return the tiles of an operator, also those in quarantine: a mended kernel is checked like all others."""
    found: list[Impl] = [*native_impls(on_cpu=bench.dry), *triton_impls(on_cpu=bench.dry)]
    return [impl for impl in found if family(impl.name) == operator]


def why_absent(operator: str, bench: Bench) -> str:
    """Return why an operator takes none of the cases here."""
    for impl in impls_of(operator, bench):
        for segment, problem, _ in _segments(bench, ROWS[:1]):
            if (reason := impl.refuses(segment, problem)) not in (None, OTHER_KIND):
                return f"{operator}: {reason}"
    return bench.kernels().refusal or f"{operator} is not here"


def _segments(bench: Bench, rows: Sequence[int]) -> Iterator[tuple[tuple[Operator, ...], Problem, str]]:
    """Segments of the goals' shapes, the problems they run on, and the name of the shape."""
    for shape in [DRY_MLP] if bench.dry else [mlp_shape(name) for name in GOAL_SHAPES]:
        for count in rows[:2] if bench.dry else rows:
            problem = Problem(bench.device, bench.dtype, 1, count)
            fc1, fc2 = layers(shape, bench.nblocks, problem)
            weight, bias = (torch.randn(shape.width, device=bench.device) for _ in range(2))
            norm = LayerNorm(weight, bias, 1e-6)
            for segment in (
                (fc1,),
                (fc1, Gelu()),
                (fc2,),
                (fc2, Add()),
                (fc1, Gelu(), fc2),
                (norm, fc1, Gelu(), fc2, Add()),
            ):
                yield segment, problem, shape.name
    for attention in ATTENTION_SHAPES:
        if (attention.name == DRY) == bench.dry:
            operator = Attention(attention.heads, attention.head_dim, attention.head_dim**-0.5)
            for batch, tokens in IMAGES[:2] if bench.dry else IMAGES:
                yield (operator,), Problem(bench.device, bench.dtype, batch, tokens), attention.name


def _segment_case(impl: Impl, segment: Sequence[Operator], problem: Problem, shape: str) -> Case:
    adds = Chain(segment).residual_width
    what = f"{shape} {'+'.join(kinds(segment))}, {problem.batch}x{problem.tokens}"
    size = (problem.batch, problem.tokens, _width(segment))

    def truth(x: Tensor, residual: Tensor | None) -> Tensor:
        return evaluate(segment, x.double(), None if residual is None else residual.double())

    make, mixes = partial(impl.build, segment, problem), isinstance(segment[0], Attention)
    return Case(impl.name, what, size, make, truth, TOLERANCE[problem.dtype], adds, mixes)


def _norm_cases(bench: Bench, rows: Sequence[int]) -> Iterator[Case]:
    """The addition and the norm behind it give sums and norms: here they are a row's first and second half."""
    if not hasattr(torch.ops.milkweed, "add_layernorm"):
        return
    for shape in [DRY_MLP] if bench.dry else [mlp_shape(name) for name in GOAL_SHAPES]:
        weight, bias = (torch.randn(shape.width, device=bench.device) for _ in range(2))

        def truth(x: Tensor, y: Tensor | None, weight: Tensor = weight, bias: Tensor = bias) -> Tensor:
            sums = x.double() if y is None else x.double() + y.double()
            return torch.cat((sums, F.layer_norm(sums, weight.shape, weight.double(), bias.double(), 1e-6)), -1)

        def call(x: Tensor, y: Tensor | None, weight: Tensor = weight, bias: Tensor = bias) -> Tensor:
            both = torch.ops.milkweed.add_layernorm(x[0], needed(y)[0], weight, bias, 1e-6)
            return torch.cat((both[0], both[1]), -1)[None]

        for count in rows[:2] if bench.dry else rows:
            size, what = (1, count, shape.width), f"{shape.name} add+norm, 1x{count}"
            yield Case(
                "native_add_layernorm", what, size, lambda: call, truth, TOLERANCE[bench.dtype], adds=shape.width
            )


def _cell_cases(cell: Cell, bench: Bench) -> Iterator[Case]:
    copied = exact_copy(cell.plain)
    for batch in CELL_BATCHES[:1] if bench.dry else CELL_BATCHES:
        problem = Problem(bench.device, bench.dtype, batch, cell.tokens)
        beside = torch.randn(batch, cell.tokens, cell.beside, device=bench.device).to(bench.dtype)
        more = (beside,) if cell.beside else ()
        # Not `ways`, which leaves out what is quarantined.
        for way in [] if cell.part.refusal(problem) else cell.part.native_ways(problem):
            call, size = on(way, more), (batch, cell.tokens, cell.width)
            what = f"{cell.name}, {batch}x{cell.tokens}"
            yield Case(
                way.name,
                what,
                size,
                lambda call=call: lambda x, _: call(x),  # type: ignore[misc]
                lambda x, _, more=more: exact(copied, more, x),  # type: ignore[misc]
                CELL_TOLERANCE,
                mixes_rows=True,
            )


def check(case: Case, bench: Bench) -> dict[str, object] | None:
    """Check a tile on a problem; None where the kernel itself refuses the tile on this device.

    Raises:
        RuntimeError: the launch failed.
    """
    x, residual = inputs(case, bench)
    right = case.truth(x, residual)
    try:
        call = case.make()
        _poison(right.numel() * x.itemsize, bench.device)
        y = call(x, residual)
    except RuntimeError as error:
        if REFUSED.search(str(error)):
            return None
        raise
    found = relative_error(y, right)
    repeatable = torch.equal(y, call(x, residual))
    isolated = _isolated(call, x, residual, y, case.mixes_rows)
    wrong = {
        f"relative error {found:.2e}, the limit is {case.tolerance:.0e}": not found <= case.tolerance,
        "other bits the second time": not repeatable,
        "a NaN in the last row is lost or spreads": not isolated,
    }
    note = "; ".join(text for text, is_so in wrong.items() if is_so)
    return {"error": found, "repeatable": repeatable, "isolated": isolated, "passed": not note, "note": note}


def inputs(case: Case, bench: Bench) -> tuple[Tensor, Tensor | None]:
    """Return random x, and the residual where the case adds one."""
    x = torch.randn(case.shape, device=bench.device).to(bench.dtype)
    added = torch.randn((*case.shape[:2], case.adds), device=bench.device).to(bench.dtype)
    return x, added if case.adds else None


def _isolated(call: Call, x: Tensor, residual: Tensor | None, y: Tensor, mixes_rows: bool) -> bool:
    """Whether a NaN in the last row (the last image) changes no other row (image) and is not lost."""
    with_nan = x.clone()
    with_nan[-1, -1, 0] = float("nan")
    z = call(with_nan, residual)
    after, before = (z, y) if mixes_rows else (z.flatten(0, 1), y.flatten(0, 1))
    return bool(after[-1].isnan().any()) and torch.equal(after[:-1], before[:-1])


def _width(segment: Sequence[Operator]) -> int:
    first = segment[0]
    if isinstance(first, LayerNorm):
        return len(first.weight)
    if isinstance(first, Attention):
        return 3 * first.num_heads * first.head_dim
    return int(getattr(first, "in_features", 0))


def _poison(nbytes: int, device: torch.device) -> None:
    """Leave NaN in the memory that the next allocation of this size is likely to get."""
    if device.type == "cuda":
        torch.full((nbytes,), 0xFF, dtype=torch.uint8, device=device)
