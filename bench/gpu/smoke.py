"""Checks one operator before anything is timed: every tile on few and many rows against float64.

A result must be near the right one, the same bits twice, and written wholly: memory is poisoned before. A NaN in the
last row (the last image, where an operator mixes rows) must stay there and not be lost. Triton's tiles are compiled
ahead for what is asked of them here.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...kernels.chain_ir import Add, Gelu, LayerNorm, Operator, Problem, SelfAttention, evaluate, kinds
from ...kernels.impls.all import all_impls
from ...kernels.impls.base import OTHER_KIND, Impl, family
from ...kernels.impls.native import native_impls
from ...kernels.impls.triton import triton_impls
from ...kernels.tuning.chain import Chain
from ...kernels.tuning.verify import relative_error
from ...models.serving.fused.add_norm import AddNorm, AddNormPart
from ...models.serving.fused.alternatives import Part, exact_copy
from .journal import Absent, Journal, Record, attempt_parts
from .measure import TOLERANCE, Bench, bench_of
from .plan import ATTENTION_SHAPES, BRANCHES, COMPILERS, DRY, GOAL_SHAPES, MLP_SHAPES, PERFORMERS, TRITON, Task
from .rows import CELL_TOLERANCE, cell_of, layers

ROWS = (1, 17, 197, 6304)
"""Rows of products; an attention, which takes images of at most 256 tokens, has so many tokens in all."""

MANY_ROWS = 128 * 197
"""Rows of the goals' largest batch."""

IMAGES = ((2, 1), (2, 17), (2, 197), (32, 197))
CELL_BATCHES = (2, 32)

TILE_SECONDS, TRITON_TILE_SECONDS = 15.0, 60.0
"""A tile that takes longer hangs; Triton may have to compile many kernels for one."""

COMPILE_SECONDS = 50.0
"""After these, nothing more is compiled ahead."""

# A launch function's own refusal of a tile names its kernel; what CUDA says does not, and is a failure.
REFUSED = re.compile(r"not launched: [a-z_ ]+: ")

Call = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """One tile on one problem.

    Args:
        widths: of the inputs x and, where there is one, what is added.
        make: builds what is checked, so that a failed packing is that of its tile.
        truth: the right answer for the inputs, in a wider type.
        mixes_rows: rows of an image depend on each other.
    """

    tile: str
    what: str
    problem: Problem
    widths: tuple[int, ...]
    make: Callable[[], Call]
    truth: Call
    tolerance: float
    mixes_rows: bool = False

    def inputs(self) -> list[Tensor]:
        """Make random inputs."""
        shape, device = (self.problem.batch, self.problem.tokens), self.problem.device
        return [torch.randn(*shape, width, device=device).to(self.problem.dtype) for width in self.widths]


@torch.inference_mode()
def smoke(task: Task, unit: str) -> list[Record]:
    """Check an operator: each of its tiles is a unit of its own, so that a fault is that tile's."""
    bench, journal, operator = bench_of(task), Journal(Path(task.out)), unit.partition("/")[2]
    tiles: dict[str, list[Case]] = {}
    for case in cases(operator, bench):
        tiles.setdefault(case.tile, []).append(case)
    if not tiles:
        raise Absent(why_absent(operator, bench))
    limit = min(TRITON_TILE_SECONDS if operator in TRITON else TILE_SECONDS, task.unit_limit)
    parts = ((tile, _checks(journal, f"{unit}/{tile}", of_tile)) for tile, of_tile in tiles.items())
    attempt_parts(journal, unit, limit, parts)
    return []


def _checks(journal: Journal, unit: str, of_tile: Sequence[Case]) -> Iterator[Record]:
    """Check a tile, one record for each case; the journal says which one has begun."""
    for case in of_tile:
        journal.write("case", {"unit": unit, "what": case.what})
        checked = check(case)
        if checked is not None:
            yield {"kind": "check", "section": "smoke", "what": case.what, **checked}


def cases(operator: str, bench: Bench, rows: Sequence[int] = ROWS) -> Iterator[Case]:
    """Yield all cases of an operator that it does not refuse."""
    shapes = [DRY] if bench.dry else GOAL_SHAPES
    if operator in ("native_performer", "native_branch"):
        names = list(PERFORMERS if operator == "native_performer" else BRANCHES)
        for name in names[:1] if bench.dry else names:
            cell = cell_of(name, bench)
            for batch in CELL_BATCHES[:1] if bench.dry else CELL_BATCHES:
                problem = Problem(bench.device, bench.dtype, batch, cell.tokens)
                yield from _part_cases(name, cell.part, problem, CELL_TOLERANCE, mixes_rows=True)
    elif operator == "native_add_layernorm":
        for name in shapes:
            part = AddNormPart(AddNorm(_norm(MLP_SHAPES[name].width, bench)), bench.kernels())
            for count in rows[:2] if bench.dry else rows:
                problem = Problem(bench.device, bench.dtype, 1, count)
                yield from _part_cases(f"{name} add+norm", part, problem, TOLERANCE[bench.dtype], mixes_rows=False)
    for impl in impls_of(operator, bench):
        for segment, problem, name in _segments(bench, rows):
            if impl.refuses(segment, problem) is None:
                yield _segment_case(impl, segment, problem, name)


def impls_of(operator: str, bench: Bench) -> list[Impl]:
    """Return the tiles of an operator, also those in quarantine: a mended kernel is checked like all others."""
    impls: list[Impl] = [*native_impls(on_cpu=bench.dry), *triton_impls(on_cpu=bench.dry)]
    return [impl for impl in impls if family(impl.name) == operator]


def why_absent(operator: str, bench: Bench) -> str:
    """Return why an operator takes none of the cases here."""
    for impl in impls_of(operator, bench):
        for segment, problem, _ in _segments(bench, ROWS[:1]):
            if (reason := impl.refuses(segment, problem)) not in (None, OTHER_KIND):
                return f"{operator}: {reason}"
    return bench.kernels().refusal or f"{operator} is not here"


def _norm(width: int, bench: Bench) -> LayerNorm:
    weight, bias = (torch.randn(width, device=bench.device) for _ in range(2))
    return LayerNorm(weight, bias, 1e-6)


def _segments(bench: Bench, rows: Sequence[int]) -> Iterator[tuple[tuple[Operator, ...], Problem, str]]:
    """Yield segments of the goals' shapes, the problems they run on, and the name of the shape."""
    for name in [DRY] if bench.dry else GOAL_SHAPES:
        for count in rows[:2] if bench.dry else rows:
            problem = Problem(bench.device, bench.dtype, 1, count)
            fc1, fc2 = layers(MLP_SHAPES[name], bench.nblocks, problem)
            norm = _norm(MLP_SHAPES[name].width, bench)
            for segment in (
                (fc1,),
                (fc1, Gelu()),
                (fc2,),
                (fc2, Add()),
                (fc1, Gelu(), fc2),
                (norm, fc1, Gelu(), fc2, Add()),
            ):
                yield segment, problem, name
        heads, head_dim, _ = ATTENTION_SHAPES[name]
        for batch, tokens in IMAGES[:2] if bench.dry else IMAGES:
            problem = Problem(bench.device, bench.dtype, batch, tokens)
            yield (SelfAttention(heads, head_dim, head_dim**-0.5),), problem, name


def _segment_case(impl: Impl, segment: Sequence[Operator], problem: Problem, shape: str) -> Case:
    chain, what = Chain(segment), f"{shape} {'+'.join(kinds(segment))}, {problem.batch}x{problem.tokens}"
    widths = (chain.widths[0], chain.residual_width) if chain.residual_width else (chain.widths[0],)

    def truth(*inputs: Tensor) -> Tensor:
        return evaluate(segment, *(tensor.double() for tensor in inputs))

    make, mixes = partial(impl.build, segment, problem), isinstance(segment[0], SelfAttention)
    return Case(impl.name, what, problem, widths, make, truth, TOLERANCE[problem.dtype], mixes)


def _part_cases(name: str, part: Part, problem: Problem, tolerance: float, *, mixes_rows: bool) -> Iterator[Case]:
    """Yield the native ways of a part; of an addition and the norm behind it, sums and norms are halves of a row."""
    what, exact = f"{name}, {problem.batch}x{problem.tokens}", exact_copy(part.plain)

    def in_rows(call: Call, *inputs: Tensor) -> Tensor:
        y = call(*inputs)
        return y if isinstance(y, Tensor) and y.dim() == 3 else torch.cat(tuple(y), -1)

    def truth(*inputs: Tensor) -> Tensor:
        return in_rows(exact, *(tensor.float() for tensor in inputs))

    # Not `ways`, which leaves out what is quarantined.
    for way in [] if part.refusal(problem) else part.native_ways(problem):
        make = partial(partial, in_rows, way.call)
        yield Case(way.name, what, problem, part.input_widths(), make, truth, tolerance, mixes_rows)


def check(case: Case) -> dict[str, object] | None:
    """Check a tile on a problem; None where the kernel itself refuses the tile on this device.

    Raises:
        RuntimeError: the launch failed.
    """
    inputs = case.inputs()
    right = case.truth(*inputs)
    try:
        call = case.make()
        if right.is_cuda:  # the next allocation of this size is likely to get this memory: full of NaN
            torch.full((right.numel() * inputs[0].itemsize,), 0xFF, dtype=torch.uint8, device=right.device)
        y = call(*inputs)
    except RuntimeError as error:
        if REFUSED.search(str(error)):
            return None
        raise
    off = relative_error(y, right)
    repeatable = torch.equal(y, call(*inputs))
    isolated = _isolated(call, inputs, y, case.mixes_rows)
    wrong = {
        f"relative error {off:.2e}, the limit is {case.tolerance:.0e}": not off <= case.tolerance,
        "other bits the second time": not repeatable,
        "a NaN in the last row is lost or spreads": not isolated,
    }
    note = "; ".join(text for text, is_so in wrong.items() if is_so)
    return {"error": off, "repeatable": repeatable, "isolated": isolated, "passed": not note, "note": note}


def _isolated(call: Call, inputs: Sequence[Tensor], y: Tensor, mixes_rows: bool) -> bool:
    """Return whether a NaN in the last row (the last image) changes no other row (image) and is not lost."""
    x, *more = inputs
    with_nan = x.clone()
    with_nan[-1, -1, 0] = float("nan")
    z = call(with_nan, *more)
    after, before = (z, y) if mixes_rows else (z.flatten(0, 1), y.flatten(0, 1))
    return bool(after[-1].isnan().any()) and torch.equal(after[:-1], before[:-1])


@torch.inference_mode()
def precompile(task: Task, unit: str) -> Iterator[Record]:
    """Launch a share of Triton's tiles, unchecked, on all that the smoke test and the goals' MLPs ask of them.

    Triton keeps compiled kernels on disk, where later processes find them; what there is no time for they compile.
    """
    bench, until, launched = bench_of(task), time.monotonic() + COMPILE_SECONDS, 0
    tiles = [impl.name for impl in all_impls() if family(impl.name) in TRITON][int(unit.partition("/")[2]) :: COMPILERS]
    for tile in tiles:
        for case in cases(family(tile), bench, (*ROWS, MANY_ROWS)):
            if case.tile == tile and time.monotonic() < until:
                case.make()(*case.inputs())
                launched += 1
    if bench.device.type == "cuda":
        torch.cuda.synchronize(bench.device)
    yield {"what": "Triton", "candidate": ", ".join(tiles), "launched": launched}
