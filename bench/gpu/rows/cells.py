"""Rows of ViTAE's cells: the performer attention of the reduction cells, the convolution branch of the normal ones."""

from collections.abc import Callable
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
from ..journal import Record
from .bench import Bench
from .measure import Candidate, Subject, Work, measure
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
    work: Work


def cell_of(name: str, bench: Bench) -> Cell:
    """Make the performer attention of a reduction cell, or the convolution branch of a normal one."""
    if name in PERFORMERS:
        width, dim, tokens = PERFORMERS[name]
        cell = PerformerAttention(width, dim)
        nn.init.normal_(cell.w, std=0.5)
        placed = place(cell, bench)
        placed.w.data = cell.w.data.float().to(bench.device)
        # Each token: k, q and v read, the branch read, the result written; features and products of two passes.
        work = Work(8.0 * dim * dim / 2, 2.0 * 5 * dim)
        return Cell(name, PerformerPart(placed, bench.kernels()), 49 if bench.dry else tokens, width, dim, placed, work)
    width, heads, ratio, groups, shallow = BRANCHES[name]
    normal = NormalCell(width, heads, ratio, groups, shallow=shallow, class_token=shallow).eval()
    fold_batch_norms(normal)
    plain = BranchResidual(place(normal.PCM, bench), shallow)
    convs = [module for module in plain.branch if isinstance(module, nn.Conv2d)]
    work = Work(2.0 * sum(conv.weight.numel() for conv in convs), 2.0 * 2 * width)
    return Cell(name, BranchPart(plain, bench.kernels()), SIDE * SIDE + shallow, width, 0, plain, work)


def place(module: Placed, bench: Bench) -> Placed:
    """Put a module on the device in eval mode and channels-last, as the fused forward has it."""
    return module.eval().requires_grad_(False).to(bench.device, bench.dtype).to(memory_format=torch.channels_last)


def cells_rows(name: str, batch: int, bench: Bench) -> list[Record]:
    """Make all rows of one cell and batch."""
    cell = cell_of(name, bench)
    part, problem = cell.part, Problem(bench.device, bench.dtype, batch, cell.tokens)

    def tokens(width: int) -> Tensor:
        return torch.randn(batch, cell.tokens, width, device=bench.device).to(bench.dtype)

    more = (tokens(cell.beside),) if cell.beside else ()
    work = Work(*(problem.rows * each for each in cell.work))
    candidates = [Candidate(way.name, way.name != "torch", on(way, more), work) for way in part.ways(problem)]
    truth = partial(exact, exact_copy(cell.plain), more)
    subject = Subject(part.kind, name, batch, lambda: tokens(cell.width), truth)
    return measure(subject, candidates, bench, skipped=part.refused(problem), tolerance=CELL_TOLERANCE)


def on(way: Alternative, more: tuple[Tensor, ...]) -> Callable[[Tensor], Tensor]:
    """Return a way of a part as a function of its first input."""
    return lambda x: way.call(x, *more)


def exact(module: nn.Module, more: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """Compute a part by a float32 copy of it."""
    y = module(x.float(), *(tensor.float() for tensor in more))
    assert isinstance(y, Tensor)
    return y
