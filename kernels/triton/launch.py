"""A launch of a Triton kernel, and those of a Monarch layer and MLP: kernel, arguments, tile and output columns."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..blocked import Activation, BlockedMonarch
from .inner import NBLOCKS, ROWS, SIDE, W_STAGES, InnerShape
from .tiles import SMALLEST_DEPTH, DeviceProperties, Product, Tile, Variant, choose_tile

INTERLEAVED = (1, 2, 4, 8)
"""Numbers of output blocks that one program computes together; with others, a program computes one block."""

MOST_PROGRAMS = 2**31 - 1


@dataclass(frozen=True)
class Tiles:
    """A contiguous matrix that the tensor memory accelerator loads in tiles of so many rows and columns."""

    matrix: Tensor
    rows: int
    columns: int


@dataclass(frozen=True)
class Launch:
    """One launch, ready to run.

    Args:
        kernel: module of this folder, and function there.
        grid: numbers of programs; where one is 0, nothing is launched.
        arguments: the kernel's arguments before its compile-time ones.
        constants: its compile-time arguments; with PDL it is launched while the launch before it ends.
        warps, stages: the compiler's options.
    """

    kernel: str
    grid: tuple[int, ...]
    arguments: tuple[Tensor | Tiles | int | None, ...]
    constants: dict[str, Any]
    warps: int
    stages: int = 1

    @property
    def options(self) -> dict[str, Any]:
        """The compiler's options."""
        pdl = {"launch_pdl": True} if self.constants.get("PDL") else {}
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True} | pdl

    def run(self) -> None:
        """Launch it on the GPU of its tensors, or interpret it (TRITON_INTERPRET=1) on a CPU.

        Raises:
            ValueError: there are more programs than a launch can have.
            ModuleNotFoundError: triton is not installed.
        """
        if self.grid[0] > MOST_PROGRAMS:
            raise ValueError(f"{self.grid[0]} programs are more than a launch can have")
        if not prod(self.grid):
            return
        name, function = self.kernel.split(".")
        module = import_module(f".{name}", __package__)  # here, because only this needs triton
        tensor = next(argument for argument in self.arguments if isinstance(argument, Tensor))
        with torch.cuda.device_of(tensor):
            arguments = [_described(module, argument) for argument in self.arguments]
            getattr(module, function)[self.grid](*arguments, **self.constants, **self.options)


def _described(module: Any, argument: Tensor | Tiles | int | None) -> Any:
    if not isinstance(argument, Tiles):
        return argument
    matrix = argument.matrix
    aligned = matrix if matrix.data_ptr() % 16 == 0 else matrix.clone()
    return module.descriptor(aligned, argument.rows, argument.columns)


ChooseTile = Callable[[Product], Tile]


def linear_launches(
    x: Tensor,
    layer: BlockedMonarch,
    residual: Tensor | None,
    act: int,
    y: Tensor,
    variant: Variant,
    device: DeviceProperties,
) -> Iterator[Launch]:
    """Yield the launches of y = act(M x + bias) + residual, in order; `triton_linear` has checked the tensors."""
    choose = partial(choose_tile, variant, device=device)
    t, first = _first_factor(x, layer, choose)
    yield first
    yield _natural_factor(t, layer, residual, act, y, choose)


def mlp_launches(
    x: Tensor,
    fc1: BlockedMonarch,
    fc2: BlockedMonarch,
    residual: Tensor | None,
    y: Tensor,
    variant: Variant,
    device: DeviceProperties,
    inner: int | None = None,
) -> Iterator[Launch]:
    """Yield the launches of y = fc2(gelu(fc1(x))) + residual, in order, for layers of `sort_mlp`.

    With a tile for the inner half, one launch takes the place of the second and the third.
    """
    choose = partial(choose_tile, variant, device=device)
    t, first = _first_factor(x, fc1, choose)
    yield first
    if inner is not None:
        u = x.new_empty(len(x), fc2.K * fc2.w1.shape[1])
        yield inner_launch(t, fc1, fc2, u, inner, device)
    else:
        hidden = x.new_empty(len(x), fc1.out_features)
        segment = fc1.w2.shape[1] // fc2.K
        act, columns = kernel_act(Activation.GELU, x.dtype), columns_of(segment, fc2.p, segment)
        yield blocks_launch(t, fc1.w2, fc1.w2.shape[2], fc1.bias, None, act, hidden, columns, choose)
        u, third = _first_factor(hidden, fc2, choose)
        yield third
    yield _natural_factor(u, fc2, residual, Activation.NONE, y, choose)


def _first_factor(x: Tensor, layer: BlockedMonarch, choose: ChooseTile) -> tuple[Tensor, Launch]:
    """Compute t (M, J*K*c), where what an output block reads is contiguous."""
    read = layer.K * layer.c
    t, columns = x.new_empty(len(x), layer.J * read), columns_of(layer.c, read, layer.c)
    return t, blocks_launch(x, layer.w1, layer.p, None, None, Activation.NONE, t, columns, choose)


def inner_launch(
    t: Tensor, fc1: BlockedMonarch, fc2: BlockedMonarch, u: Tensor, tile: int, device: DeviceProperties
) -> Launch:
    """Compute an MLP's inner half, behind fc1's first factor and before fc2's second one.

    Args:
        t: what fc1's second factor reads, (rows, 4 * read).
        fc1, fc2: layers of `sort_mlp`.
        u: what fc2's second factor reads, (rows, 4 * outputs).
        tile: index of `inner.ROWS`.
    """
    shape = InnerShape.of(fc1, fc2)
    read, w2, w3 = (Tiles(matrix, SIDE, SIDE) for matrix in (t, fc1.w2.flatten(0, 1), fc2.w1.flatten(0, 1)))
    rings = (ROWS[tile] // SIDE, shape.t_stages(tile, device.shared_bytes), W_STAGES)
    constants = {"SHAPE": (shape.read, shape.hidden, shape.outputs), "RINGS": rings, "PDL": device.pdl}
    programs = -(-len(t) // ROWS[tile]) * NBLOCKS
    return Launch("inner_mlp.inner_product", (programs,), (read, w2, fc1.bias, w3, u, len(u)), constants, warps=4)


def _natural_factor(
    t: Tensor, layer: BlockedMonarch, residual: Tensor | None, act: int, y: Tensor, choose: ChooseTile
) -> Launch:
    """Multiply by the second factor and interleave the outputs: row u of block j is output u*J + j."""
    J, s, depth = layer.w2.shape
    columns, act = columns_of(s, 0, 1, J), kernel_act(act, y.dtype)
    interleaved = J in INTERLEAVED
    return blocks_launch(t, layer.w2, depth, layer.bias, residual, act, y, columns, choose, interleaved=interleaved)


def blocks_launch(
    x: Tensor,
    w: Tensor,
    p: int,
    bias: Tensor | None,
    residual: Tensor | None,
    act: int,
    y: Tensor,
    columns: dict[str, int],
    choose: ChooseTile,
    scale: Tensor | None = None,
    following: Sequence[Tensor] | None = None,
    *,
    interleaved: bool = False,
) -> Launch:
    """Multiply every block of p columns of x by its block of w.

    Args:
        act: of `kernel_act`.
        columns: of `columns_of`.
        scale: of the sums, where x and w are in 8 bits.
        following: 1 / step and zero of a result in 8 bits.
        interleaved: a program computes columns of all blocks, which are adjacent in y.
    """
    blocks, n, depth = w.shape
    tma = x.shape[1] * x.element_size() % 16 == 0 and p % SMALLEST_DEPTH == 0
    product = Product(len(x), blocks, n, p, interleaved, tma)
    tile = choose(product)
    constants = {"IN": x.shape[1], "P": p, "DEPTH": depth, "BLOCKS": blocks, "N": n, "OUT": y.shape[1], "ACT": act}
    constants |= columns | {"BM": tile.BM, "BN": tile.BN, "REST": tile.REST, "BK": tile.BK, "TMA": tile.tma}
    constants |= {"INTERLEAVED": interleaved, "PDL": tile.pdl}
    operands = (_tiles(x, tile.BM, tile) or x, w, _tiles(w, tile.BN, tile), _tiles(w, tile.REST, tile))
    arguments = (*operands, scale, bias, residual, *(following or (None, None)), y, len(x))
    programs = (tile.programs(product),)
    return Launch("kernels.block_product", programs, arguments, constants, tile.warps, tile.stages)


def _tiles(matrix: Tensor, rows: int, tile: Tile) -> Tiles | None:
    return Tiles(matrix.flatten(0, -2), rows, tile.BK) if tile.tma and rows else None


def kernel_act(act: int, dtype: torch.dtype) -> int:
    """Return the kernels' number of an `Activation`: a GELU of bfloat16 is another one, as exact as that."""
    return 2 if act == Activation.GELU and dtype == torch.bfloat16 else int(act)


def columns_of(segment: int, between_segments: int, between_blocks: int, step: int = 1) -> dict[str, int]:
    """Say where row n of block b of w is stored.

    It is column n // segment * between_segments + b * between_blocks + n % segment * step.
    """
    return {"SEGMENT": segment, "BETWEEN_SEGMENTS": between_segments, "BETWEEN_BLOCKS": between_blocks, "STEP": step}
