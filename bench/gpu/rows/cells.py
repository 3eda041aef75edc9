"""Rows of ViTAE's cells: the performer attention of the reduction cells, the convolution branch of the normal ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from ....kernels.chain_ir import Problem
from ....models.architectures.vitae.normal import NormalCell
from ....models.architectures.vitae.reduction import PerformerAttention
from ....models.serving.fused.alternatives import Alternative, Part, exact_copy
from ....models.serving.fused.branch import BranchPart, BranchResidual
from ....models.serving.fused.reduction import PerformerPart
from ....models.serving.prepare import fold_batch_norms
from ..child import Measure, Task
from ..journal import Writer
from .bench import Bench, bench_of, write_rows
from .row import Candidate, Row, measure
from .shapes import BRANCHES, PERFORMERS

SIDE = 14

CELL_TOLERANCE = 2e-2
"""Relative error of a chain of several rounded operations, which PyTorch's own has too."""

Placed = TypeVar("Placed", bound=nn.Module)


@dataclass(frozen=True)
class Cell:
    """A part of a cell, with what its rows need.

    Args:
        name: its shape's name.
        tokens: that it takes.
        width: channels of a token.
        beside: channels of the tokens that are added, 0 where there are none.
        plain: the part in plain PyTorch.
        work: operations and bytes of one token.
    """

    name: str
    part: Part
    tokens: int
    width: int
    beside: int
    plain: nn.Module
    work: tuple[float, float]


def cells(task: Task, writer: Writer) -> Measure:
    """Return what measures the cells of a batch."""
    bench = bench_of(task, writer)

    @torch.inference_mode()
    def measure_unit(unit: str) -> None:
        for cell in [*performers(bench), *branches(bench)]:
            write_rows(writer, unit, cell_rows(cell, int(unit.split("/")[1]), bench))

    return measure_unit


def performers(bench: Bench) -> Iterator[Cell]:
    """Make the performer attention of each reduction cell; one, with few tokens, in a dry run."""
    for name, (width, dim, tokens) in list(PERFORMERS.items())[: 1 if bench.dry else None]:
        cell = PerformerAttention(width, dim)
        nn.init.normal_(cell.w, std=0.5)
        placed = place(cell, bench)
        placed.w.data = cell.w.data.float().to(bench.device)
        # Each token: k, q and v read, the branch read, the result written; features and products of two passes.
        work = (8.0 * dim * dim / 2, 2.0 * 5 * dim)
        part = PerformerPart(placed, bench.kernels())
        yield Cell(name, part, 49 if bench.dry else tokens, width, dim, placed, work)


def branches(bench: Bench) -> Iterator[Cell]:
    """Make the convolution branch of each normal cell; one in a dry run."""
    for name, (width, heads, ratio, groups, shallow) in list(BRANCHES.items())[: 1 if bench.dry else None]:
        normal = NormalCell(width, heads, ratio, groups, shallow=shallow, class_token=shallow).eval()
        fold_batch_norms(normal)
        plain = BranchResidual(place(normal.PCM, bench), shallow)
        convs = [module for module in plain.branch if isinstance(module, nn.Conv2d)]
        work = (2.0 * sum(conv.weight.numel() for conv in convs), 2.0 * 2 * width)
        yield Cell(name, BranchPart(plain, bench.kernels()), SIDE * SIDE + shallow, width, 0, plain, work)


def place(module: Placed, bench: Bench) -> Placed:
    """Put a module on the device in eval mode and channels-last, as the fused forward has it."""
    return module.eval().requires_grad_(False).to(bench.device, bench.dtype).to(memory_format=torch.channels_last)


def cell_rows(cell: Cell, batch: int, bench: Bench) -> list[Row]:
    """Make all rows of one cell and batch."""
    problem = Problem(bench.device, bench.dtype, batch, cell.tokens)

    def tokens(width: int) -> Tensor:
        return torch.randn(batch, cell.tokens, width, device=bench.device).to(bench.dtype)

    more = (tokens(cell.beside),) if cell.beside else ()
    part, floor = cell.part, bench.ceilings.floor_us(*(problem.rows * each for each in cell.work))
    candidates = [Candidate(way.name, way.name != "torch", on(way, more), floor) for way in part.ways(problem)]
    reason = part.refusal(problem)
    return measure(
        part.kind,
        f"{cell.name} N={cell.tokens}",
        batch,
        candidates,
        lambda: tokens(cell.width),
        partial(exact, exact_copy(cell.plain), more),
        timer=bench.timer,
        ceilings=bench.ceilings,
        skipped={} if reason is None else {f"native_{part.kind}": reason},
        tolerance=CELL_TOLERANCE,
    )


def on(way: Alternative, more: tuple[Tensor, ...]) -> Callable[[Tensor], Tensor]:
    """Return a way of a part as a function of its first input."""
    return lambda x: way.call(x, *more)


def exact(module: nn.Module, more: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """Compute a part by a float32 copy of it."""
    y = module(x.float(), *(tensor.float() for tensor in more))
    assert isinstance(y, Tensor)
    return y
