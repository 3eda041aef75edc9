"""Rows of ViTAE's cells: the performer attention of the reduction cells, the convolution branch of the normal ones."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from ...kernels.chain_ir import Problem
from ...models.architectures.vitae.normal import NormalCell
from ...models.architectures.vitae.reduction import PerformerAttention
from ...models.serving.fused.alternatives import Alternative, Part, exact_copy
from ...models.serving.fused.branch import BranchPart, BranchResidual
from ...models.serving.fused.device_kernels import device_kernels
from ...models.serving.fused.reduction import PerformerPart
from ...models.serving.prepare import fold_batch_norms
from .ceilings import Ceilings
from .rows import Candidate, Row, measure
from .timing import Timer

PERFORMERS = {
    "ViTAE-T cell 1": (256, 64, 3136),
    "ViTAE-T cell 2": (192, 64, 784),
    "ViTAE-S cell 1": (256, 96, 3136),
    "ViTAE-S cell 2": (192, 192, 784),
}
"""Input width, token width, tokens."""

BRANCHES = {
    "ViTAE-T": (256, 4, 2, 64, False),
    "ViTAE-S": (384, 6, 3, 96, False),
    "ViTAE-B": (768, 12, 4, 192, True),
}
"""Width, heads, mlp ratio, groups, shallow with a class token."""

SIDE = 14

Placed = TypeVar("Placed", bound=nn.Module)


def cell_rows(
    batch: int, *, device: torch.device, dtype: torch.dtype, timer: Timer, ceilings: Ceilings, tiny: bool = False
) -> list[Row]:
    """All rows of one batch."""
    kernels = device_kernels(device)
    rows: list[Row] = []
    for name, (width, dim, tokens) in PERFORMERS.items():
        cell = PerformerAttention(width, dim)
        nn.init.normal_(cell.w, std=0.5)
        placed = place(cell, device, dtype)
        placed.w.data = cell.w.data.float()
        part: Part = PerformerPart(placed, kernels)
        problem = Problem(device, dtype, batch, 49 if tiny else tokens)
        parallel = torch.randn(batch, problem.tokens, dim, device=device).to(dtype)
        # Each token: k, q and v read, the branch read, the result written; features and products of two passes.
        floor = ceilings.floor_us(8.0 * problem.rows * dim * dim / 2, 2.0 * problem.rows * 5 * dim)
        rows += _part_rows("performer", name, part, problem, width, (parallel,), floor, placed, timer, ceilings)
        if tiny:
            break
    for name, (width, heads, ratio, groups, shallow) in BRANCHES.items():
        normal = NormalCell(width, heads, ratio, groups, shallow=shallow, class_token=shallow).eval()
        fold_batch_norms(normal)
        plain = BranchResidual(place(normal.PCM, device, dtype), shallow)
        problem = Problem(device, dtype, batch, SIDE * SIDE + shallow)
        convs = [module for module in plain.branch if isinstance(module, nn.Conv2d)]
        flops = 2.0 * batch * SIDE * SIDE * sum(conv.weight.numel() for conv in convs)
        floor = ceilings.floor_us(flops, 2.0 * 2 * problem.rows * width)
        part = BranchPart(plain, kernels)
        rows += _part_rows("branch", name, part, problem, width, (), floor, plain, timer, ceilings)
        if tiny:
            break
    return rows


def place(module: Placed, device: torch.device, dtype: torch.dtype) -> Placed:
    """Put a module on the device in eval mode and channels-last, as the fused forward has it."""
    return module.eval().requires_grad_(False).to(device, dtype).to(memory_format=torch.channels_last)


def _part_rows(
    section: str,
    name: str,
    part: Part,
    problem: Problem,
    width: int,
    more: tuple[Tensor, ...],
    floor: float,
    plain: nn.Module,
    timer: Timer,
    ceilings: Ceilings,
) -> list[Row]:
    def make_input() -> Tensor:
        return torch.randn(problem.batch, problem.tokens, width, device=problem.device).to(problem.dtype)

    def on(way: Alternative) -> Callable[[Tensor], Tensor]:
        return lambda x: way.call(x, *more)

    exact = exact_copy(plain)
    skipped = {} if (reason := part.refusal(problem)) is None else {f"native_{part.kind}": reason}
    candidates = [Candidate(way.name, way.name != "torch", on(way), floor) for way in part.ways(problem)]
    truth = partial(_exact, exact, tuple(tensor.float() for tensor in more))
    return measure(
        section,
        f"{name} N={problem.tokens}",
        problem.batch,
        candidates,
        make_input,
        truth,
        timer=timer,
        ceilings=ceilings,
        skipped=skipped,
        tolerance=2e-2,  # a chain of several rounded operations, PyTorch's own too
    )


def _exact(module: nn.Module, more: tuple[Tensor, ...], x: Tensor) -> Tensor:
    y = module(x.float(), *more)
    assert isinstance(y, Tensor)
    return y
