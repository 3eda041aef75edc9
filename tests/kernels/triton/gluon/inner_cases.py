"""The inner half of a Monarch MLP in its interpreter: tensors, their truth in float64, and a run."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from milkweed.kernels.blocked import Activation, BlockedMonarch, activated
from milkweed.kernels.triton.inner import InnerShape
from milkweed.kernels.triton.launch import Tiles, inner_launch
from milkweed.kernels.triton.layout import sort_layer, sort_mlp
from milkweed.kernels.triton.linear import SOURCES
from milkweed.kernels.triton.tiles import DeviceProperties

from ...emulated.emulation import guarded, guards_untouched, relative_error
from .interpreter import GluonKernels
from .machine import Mode
from .values import Descriptor, Pointer

HOPPER = DeviceProperties((9, 0), 232448, pdl=True)
SOURCE = Path(SOURCES) / "inner_mlp.py"


@dataclass(frozen=True)
class Case:
    """An MLP of 4 blocks on some rows.

    Args:
        rows: rows of the batch.
        narrow: features of a block, 64, 128, 192 or 256.
        ratio: hidden features to a feature.
        rank: rows of a block of the first factors; those of a block where 0.
        bias: there is one.
        tile: number of the tile.
    """

    rows: int
    narrow: int = 192
    ratio: int = 4
    rank: int = 0
    bias: bool = True
    tile: int = 0

    @cached_property
    def layers(self) -> tuple[BlockedMonarch, BlockedMonarch]:
        """Return fc1 and fc2 of `sort_mlp`."""
        narrow, wide, rank = self.narrow, self.narrow * self.ratio, self.rank or self.narrow
        generator = torch.Generator().manual_seed(self.rows)

        def layer(p: int, s: int) -> BlockedMonarch:
            w1 = torch.randn(4, rank, p, generator=generator) / p**0.5
            w2 = torch.randn(4, s, rank, generator=generator) / rank**0.5
            bias = torch.randn(4 * s, generator=generator) if self.bias else None
            return sort_layer(w1, w2, bias, 4 * s, torch.bfloat16)

        return sort_mlp(layer(narrow, wide), layer(wide, narrow), 4 * wide)

    @cached_property
    def t(self) -> Tensor:
        """Return the launch's input."""
        shape = InnerShape.of(*self.layers)
        generator = torch.Generator().manual_seed(self.rows + 1)
        return torch.randn(self.rows, 4 * shape.read, generator=generator).bfloat16()

    @cached_property
    def truth(self) -> Tensor:
        """Return u in float64, of hidden features rounded as the kernel rounds them."""
        fc1, fc2 = self.layers
        shape = InnerShape.of(fc1, fc2)
        h = torch.einsum("rld,lnd->rln", self.t.double().view(self.rows, 4, -1), fc1.w2.double())
        h = h if fc1.bias is None else h + fc1.bias.double()
        h = activated(h, Activation.GELU).bfloat16().double()
        h = h.view(self.rows, 4, 4, shape.hidden).transpose(1, 2).flatten(2)
        u = torch.einsum("rkd,knd->rkn", h, fc2.w1.double())
        return u.view(self.rows, 4, 4, -1).transpose(1, 2).flatten(1)

    def run(self, kernels: GluonKernels, mode: Mode = Mode()) -> tuple[Tensor, float]:  # noqa: B008
        """Return u and its error, infinite where something is NaN, of memory that is NaN before.

        Raises:
            SynchronisationError, IndexError: the kernel is wrong.
        """
        fc1, fc2 = self.layers
        u = guarded(tuple(self.truth.shape), torch.bfloat16)
        launch = inner_launch(self.t, fc1, fc2, u, self.tile, HOPPER)
        arguments = [*map(self.interpreted, launch.arguments), *launch.constants.values()]
        kernels.launch("inner_product", launch.grid[0], arguments, mode, dependent=True)
        assert guards_untouched(u)
        return u.clone(), relative_error(u, self.truth)

    def interpreted(self, argument: Tensor | Tiles | int | None) -> Any:
        """Return an argument of the launch as the interpreter takes it; only t is of the launch before."""
        if isinstance(argument, Tiles):
            return Descriptor(argument.matrix, dependent=argument.matrix is self.t)
        return Pointer(argument) if isinstance(argument, Tensor) else argument


SHAPES = {
    "ViT-B": Case(1),
    "ViT-B, 192 rows": Case(1, tile=1),
    "ViT-L": Case(1, 256),
    "128, hidden twice as wide, 192 rows": Case(1, 128, 2, tile=1),
    "64": Case(1, 64),
    "low rank, no bias": Case(1, 192, rank=64, bias=False),
}
