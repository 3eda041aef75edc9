"""Checks each tile of each kernel before anything is timed, on few and many rows against float64.

A result must be near the right one, the same bits twice, and written wholly: memory is poisoned before. A NaN in the
last row (the last image, where an operator mixes rows) must stay there and not be lost.

`python -m milkweed.bench.gpu.smoke OPERATOR TASK` is what compute-sanitizer watches: all cases on few rows.
"""

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from ...kernels.chain_ir import Add, ChainOp, Gelu, LayerNorm, Problem, SelfAttention, evaluate, kinds
from ...kernels.impls.base import OTHER_KIND, Impl, family
from ...kernels.impls.native import native_impls
from ...kernels.impls.quantized import quantized_impls
from ...kernels.impls.quarantine import PARTS
from ...kernels.impls.triton import triton_impls
from ...kernels.tuning.chain import Chain
from ...kernels.tuning.verify import relative_error
from ...models.serving.fused.add_norm import AddNorm, AddNormPart
from ...models.serving.fused.alternatives import Alternative, Part, joined
from .journal import Absent, Record
from .measure import TOLERANCE, Bench, bench_of
from .plan import ATTENTION_SHAPES, BRANCHES, DRY, GOAL_SHAPES, MLP_SHAPES, PERFORMERS, TILES, Task
from .products import quantized_layer
from .rows import CELL_TOLERANCE, cell_of, dense_weight, layers, merge_part

ROWS = (1, 17, 197, 6304)
"""Rows of products; an attention, which takes images of at most 256 tokens, has so many tokens in all."""

FEW_ROWS, WATCHED_ROWS = ROWS[:2], 512
"""The rows of what the race checker watches, and those of the images that it sees no more of."""

SANITIZER = ("compute-sanitizer", "--error-exitcode", "9", "--tool")

PROFILER = (
    *("ncu", "--csv", "--page", "raw", "--kernel-name", "regex:product", "--section", "SpeedOfLight"),
    *("--section", "ComputeWorkloadAnalysis", "--section", "MemoryWorkloadAnalysis_Tables"),
)
COUNTERS = re.compile("tensor|gpu__time_duration|lts__t_bytes|l1tex__data_(bank|pipe)|dram__bytes|throughput")
"""It matches ncu's metrics that are kept: time, tensor cores, shared memory's banks, bytes of L2 and of memory."""

IMAGES = ((2, 1), (2, 17), (2, 197), (32, 197))
CELL_BATCHES = (2, 32)

# A launch function's own refusal of a tile names its kernel; what CUDA says does not, and is a failure.
REFUSED = re.compile(r"not launched: [a-z_ ]+: ")


@dataclass(frozen=True)
class Case:
    """One tile on one problem.

    Args:
        data: makes random inputs, and computes the right answer for them in a wider type.
        make: builds what is checked, so that a failed packing is that of its tile.
        mixes_rows: rows of an image depend on each other.
        keeps_nan: a row with a NaN has one in its result; 8 bits have none.
    """

    what: str
    problem: Problem
    data: Callable[[], tuple[Sequence[Tensor], Tensor]]
    make: Callable[[], Callable[..., Tensor]]
    tolerance: float
    mixes_rows: bool
    keeps_nan: bool = True


@torch.inference_mode()
def smoke(task: Task, unit: str) -> Iterator[Record]:
    """Check a tile on all that it takes, also one in quarantine: a mended kernel is checked like all others.

    Raises:
        Absent: it takes nothing here.
    """
    every = list(cases(unit.rpartition("/")[2], bench_of(task)))
    usable = [case for case in every if isinstance(case, Case)]
    if not usable:
        raise Absent(str(every[0]) if every else "it is not here")
    for case in usable:
        print(case.what)  # where the log ends, the process died
        if (checked := check(case)) is not None:
            yield {"kind": "check", "what": case.what, **checked}


def cases(tile: str, bench: Bench, rows: Sequence[int] = ROWS) -> Iterator[Case | str]:
    """Yield all cases of a tile; of those that it does not take, the reason."""
    rows = rows[:2] if bench.dry else rows
    if tile in PARTS:
        for name, part, problem, tolerance in _parts(family(tile), bench, rows):
            if refusal := part.refusal(problem):
                yield refusal
                continue
            for way in part.native_ways(problem):  # not `ways`, which leaves out what is in quarantine
                if way.name == tile:
                    yield _part_case(way, name, part, problem, tolerance)
        return
    # Not from `all_impls`, in which those in quarantine refuse everything.
    (impl,) = (impl for impl in impls_of(bench) if impl.name == tile)
    for segment, problem, name in _segments(bench, rows):
        if (refusal := impl.refuses(segment, problem)) != OTHER_KIND:
            yield refusal or _segment_case(impl, segment, problem, name)


def impls_of(bench: Bench) -> list[Impl]:
    """Return the tiles that are impls."""
    makers = (native_impls, triton_impls, quantized_impls)
    return [impl for make in makers for impl in make(on_cpu=bench.dry)]


def _norm(width: int, bench: Bench) -> LayerNorm:
    weight, bias = (torch.randn(width, device=bench.device) for _ in range(2))
    return LayerNorm(weight, bias, 1e-6)


def _segments(bench: Bench, rows: Sequence[int]) -> Iterator[tuple[tuple[ChainOp, ...], Problem, str]]:
    """Yield segments of the goals' shapes, the problems they run on, and the name of the shape."""
    for name in [DRY] if bench.dry else GOAL_SHAPES:
        for count in rows:
            problem = Problem(bench.device, bench.dtype, 1, count)
            fc1, fc2 = layers(MLP_SHAPES[name], bench.nblocks, problem)
            norm = _norm(MLP_SHAPES[name].width, bench)
            mlps = ((fc1, Gelu(), fc2), (norm, fc1, Gelu(), fc2, Add()))
            q1, q2 = (quantized_layer(dense_weight(layer), torch.int8) for layer in (fc1, fc2))
            quantized = ((q1,), (norm, q1), (q2, Add()), (norm, q1, Gelu(), q2, Add()))
            for segment in ((fc1,), (fc1, Gelu()), (fc2,), (fc2, Add()), *mlps, *quantized):
                yield segment, problem, name
        heads, head_dim, _ = ATTENTION_SHAPES[name]
        for batch, tokens in IMAGES[:2] if bench.dry else IMAGES:
            problem = Problem(bench.device, bench.dtype, batch, tokens)
            yield (SelfAttention(heads, head_dim, head_dim**-0.5),), problem, name


def _segment_case(impl: Impl, segment: Sequence[ChainOp], problem: Problem, shape: str) -> Case:
    chain, what = Chain(segment), f"{shape} {'+'.join(kinds(segment))}, {problem.batch}x{problem.tokens}"
    widths = [chain.widths[0], *([chain.residual_width] if chain.residual_width else [])]

    def data() -> tuple[Sequence[Tensor], Tensor]:
        shapes = [(problem.batch, problem.tokens, width) for width in widths]
        inputs = [torch.randn(shape, device=problem.device).to(problem.dtype) for shape in shapes]
        return inputs, evaluate(segment, *(x.double() for x in inputs))

    make, mixes = partial(impl.build, segment, problem), isinstance(segment[0], SelfAttention)
    return Case(what, problem, data, make, TOLERANCE[problem.dtype], mixes, keeps_nan="quantized" not in kinds(segment))


def _parts(operator: str, bench: Bench, rows: Sequence[int]) -> Iterator[tuple[str, Part, Problem, float]]:
    """Yield the parts that an operator computes, by name, the problems they run on, and their tolerances."""
    if operator == "native_add_layernorm":
        for name in [DRY] if bench.dry else GOAL_SHAPES:
            part = AddNormPart(AddNorm(_norm(MLP_SHAPES[name].width, bench)), bench.kernels())
            for count in rows:
                problem = Problem(bench.device, bench.dtype, 1, count)
                yield f"{name} add+norm", part, problem, TOLERANCE[bench.dtype]
        return
    if operator == "triton_merge":
        for name in [DRY] if bench.dry else GOAL_SHAPES:
            for batch, tokens in IMAGES[1:2] if bench.dry else IMAGES[1:]:
                problem = Problem(bench.device, bench.dtype, batch, tokens)
                yield f"{name} merge", merge_part(name, tokens, bench), problem, TOLERANCE[bench.dtype]
        return
    names = list(PERFORMERS if operator == "native_performer" else BRANCHES)
    for name in names[:1] if bench.dry else names:
        cell = cell_of(name, bench)
        for batch in CELL_BATCHES[:1] if bench.dry else CELL_BATCHES:
            yield name, cell.part, Problem(bench.device, bench.dtype, batch, cell.tokens), CELL_TOLERANCE


def _part_case(way: Alternative, name: str, part: Part, problem: Problem, tolerance: float) -> Case:
    def in_rows(result: Tensor | tuple[Tensor, ...]) -> Tensor:
        y = joined(result)  # of an addition and the norm behind it, sums and norms are halves of a row
        return y if y.dim() == 3 else torch.cat(tuple(y), -1)

    def data() -> tuple[Sequence[Tensor], Tensor]:
        inputs, right = part.truth(problem)
        return inputs, in_rows(right)

    what, mixes = f"{name}, {problem.batch}x{problem.tokens}", part.kind != "add_layernorm"
    return Case(what, problem, data, lambda: lambda *inputs: in_rows(way.call(*inputs)), tolerance, mixes)


def check(case: Case) -> dict[str, object] | None:
    """Check a tile on a problem; None where the kernel itself refuses the tile on this device.

    Raises:
        RuntimeError: the launch failed.
    """
    inputs, right = case.data()
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
    with_nan = inputs[0].clone()
    with_nan[-1, -1, 0] = float("nan")
    z = call(with_nan, *inputs[1:])
    after, before = (z, y) if case.mixes_rows else (z.flatten(0, 1), y.flatten(0, 1))
    repeatable = torch.equal(y, call(*inputs))
    isolated = bool(after[-1].isnan().any() or not case.keeps_nan) and torch.equal(after[:-1], before[:-1])
    wrong = {
        f"relative error {off:.2e}, the limit is {case.tolerance:.0e}": not off <= case.tolerance,
        "other bits the second time": not repeatable,
        "a NaN in the last row is lost or spreads": not isolated,
    }
    note = "; ".join(text for text, is_so in wrong.items() if is_so)
    return {"error": off, "repeatable": repeatable, "isolated": isolated, "passed": not note, "note": note}


def racecheck(task: Task, unit: str) -> Iterator[Record]:
    """Let compute-sanitizer watch an operator on few rows.

    Raises:
        Absent: it is not on this machine, or it could not watch.
    """
    tool, operator = unit.split("/")
    status, said = _watched([*SANITIZER, tool], operator, task, (0, 9))
    yield {
        "what": operator,
        "candidate": tool,
        "figures": {"exit_status": status},
        "passed": not status,
        "note": _last(said),
    }


def counters(task: Task, unit: str) -> Iterator[Record]:
    """Read the GPU's counters of each launch of a tile on the rows of 32 images, by NVIDIA's profiler ncu.

    Raises:
        Absent: it is not on this machine, or may not read them.
    """
    tile = unit.partition("/")[2]
    _, said = _watched(PROFILER, tile, task, (0,))
    lines = csv.reader(line for line in said.splitlines() if line.startswith('"'))
    names, units = next(lines, []), next(lines, [])
    launches = [dict(zip(names, values, strict=True)) for values in lines]
    if not launches:
        raise Absent(f"{PROFILER[0]}: {_last(said)}")
    for number, launch in enumerate(launches):
        kept = [(name, unit) for name, unit in zip(names, units, strict=True) if COUNTERS.search(name) and launch[name]]
        figures = {f"{name} {unit}".strip(): launch[name] for name, unit in kept}
        yield {"what": f"launch {number}", "candidate": launch["Kernel Name"], "figures": figures, "note": tile}


def _watched(tool: Sequence[str], what: str, task: Task, statuses: Sequence[int]) -> tuple[int, str]:
    """Run `main` under a tool of the CUDA toolkit; return its exit status and what it printed."""
    if (path := shutil.which(tool[0])) is None:
        raise Absent(f"{tool[0]} is not on this machine")
    command = [path, *tool[1:], sys.executable, "-m", __name__, what, json.dumps(asdict(task))]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout)
    if done.returncode not in statuses:
        raise Absent(f"{tool[0]}: {_last(done.stdout)}")
    return done.returncode, done.stdout


def _last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")[:300]


@torch.inference_mode()
def main(what: str, text: str) -> None:
    """Check all tiles of an operator on few rows; or run one tile once, on the longest chain of the first shape."""
    bench = bench_of(Task(**json.loads(text)))
    counted = what not in TILES
    tiles, rows = ([what], ROWS[-1:]) if counted else (TILES[what], FEW_ROWS)
    every = [case for tile in tiles for case in cases(tile, bench, rows)]
    usable = [case for case in every if isinstance(case, Case)]
    if not usable:
        raise SystemExit(f"{what}: {every[0] if every else 'it is not here'}")
    if counted:
        shape = usable[0].what.partition(" ")[0]
        case = max((case for case in usable if case.what.startswith(shape)), key=lambda case: len(case.what))
        case.make()(*case.data()[0])
        return
    for case in usable:
        if case.problem.rows < WATCHED_ROWS:
            check(case)


if __name__ == "__main__":
    main(*sys.argv[1:])
