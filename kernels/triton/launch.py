"""The launches of a Monarch layer and MLP on Triton: the kernel, tensors, tile and output columns of each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from ..blocked import Activation, BlockedMonarch
from .inner import InnerLaunch
from .tiles import SMALLEST_DEPTH, DeviceProperties, Product, Tile, Variant, choose_tile

INTERLEAVED = (1, 2, 4, 8)
"""Numbers of output blocks that one program computes together; with others, a program computes one block."""

MOST_PROGRAMS = 2**31 - 1


@dataclass(frozen=True)
class Launch:
    """One launch, ready to run.

    Args:
        kernel: name of the function in `kernels`.
        x, w, bias, residual, y: its tensors; bias and residual may be None.
        product: what it computes.
        tile: how the product is split into programs.
        shape: other compile-time numbers.
    """

    kernel: str
    x: Tensor
    w: Tensor
    bias: Tensor | None
    residual: Tensor | None
    y: Tensor
    product: Product
    tile: Tile
    shape: dict[str, int]

    @property
    def constants(self) -> dict[str, Any]:
        """The kernel's compile-time arguments."""
        flags = {"HAS_BIAS": self.bias is not None, "HAS_RESIDUAL": self.residual is not None}
        tile = {"BM": self.tile.BM, "BN": self.tile.BN, "BK": self.tile.BK, "TMA": self.tile.tma, "PDL": self.tile.pdl}
        return self.shape | flags | tile

    @property
    def tile_columns(self) -> tuple[int, ...]:
        """The columns of the tiles of w that the kernel takes as arguments."""
        BN, REST = self.tile.BN, self.tile.REST
        return (BN,) if self.product.interleaved else (BN, REST or BN)

    @property
    def options(self) -> dict[str, Any]:
        """The compiler's options."""
        pdl = {"launch_pdl": True} if self.tile.pdl else {}
        return {"num_warps": self.tile.warps, "num_stages": self.tile.stages, "enable_fp_fusion": True} | pdl

    def run(self) -> None:
        """Launch it on the current CUDA device, or interpret it (TRITON_INTERPRET=1) on a CPU; no rows, no launch.

        Raises:
            ValueError: there are more rows than a launch can have.
            ModuleNotFoundError: triton is not installed.
        """
        from . import kernels  # here, because only this needs triton

        programs = self.tile.programs(self.product)
        if programs > MOST_PROGRAMS:
            raise ValueError(f"{self.product.rows} rows: {programs} programs are more than a launch can have")
        if not programs:
            return
        x, w = self.x, self.w
        tiles = [w] * len(self.tile_columns)
        if self.tile.tma:
            x = x if x.data_ptr() % 16 == 0 else x.clone()
            x = kernels.descriptor(x, self.tile.BM, self.tile.BK)
            tiles = [kernels.descriptor(w.view(-1, w.shape[2]), n, self.tile.BK) for n in self.tile_columns]
        bias = self.y if self.bias is None else self.bias
        residual = self.y if self.residual is None else self.residual
        arguments = (x, w, *tiles, bias, residual, self.y, self.product.rows)
        getattr(kernels, self.kernel)[(programs,)](*arguments, **self.constants, **self.options)


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
    first = _first_factor(x, layer, choose)
    yield first
    yield _natural_factor(first.y, layer, residual, act, y, choose)


def mlp_launches(
    x: Tensor,
    fc1: BlockedMonarch,
    fc2: BlockedMonarch,
    residual: Tensor | None,
    y: Tensor,
    variant: Variant,
    device: DeviceProperties,
    inner: int | None = None,
) -> Iterator[Launch | InnerLaunch]:
    """Yield the launches of y = fc2(gelu(fc1(x))) + residual, in order, for layers of `sort_mlp`.

    With a tile for the inner half, one launch takes the place of the second and the third.
    """
    choose = partial(choose_tile, variant, device=device)
    first = _first_factor(x, fc1, choose)
    yield first
    if inner is not None:
        u = x.new_empty(len(x), fc2.K * fc2.w1.shape[1])
        yield InnerLaunch(first.y, fc1, fc2, u, inner, device)
        yield _natural_factor(u, fc2, residual, Activation.NONE, y, choose)
        return
    hidden = x.new_empty(len(x), fc1.out_features)
    segment = fc1.w2.shape[1] // fc2.K
    columns = _columns(segment, fc2.p, segment)
    yield _blocks(first.y, fc1.w2, fc1.w2.shape[2], fc1.bias, None, Activation.GELU, hidden, columns, choose)
    third = _first_factor(hidden, fc2, choose)
    yield third
    yield _natural_factor(third.y, fc2, residual, Activation.NONE, y, choose)


def _first_factor(x: Tensor, layer: BlockedMonarch, choose: ChooseTile) -> Launch:
    """Compute t (M, J*K*c), where what an output block reads is contiguous."""
    read = layer.K * layer.c
    t = x.new_empty(len(x), layer.J * read)
    columns = _columns(layer.c, read, layer.c)
    return _blocks(x, layer.w1, layer.p, None, None, Activation.NONE, t, columns, choose)


def _natural_factor(
    t: Tensor, layer: BlockedMonarch, residual: Tensor | None, act: int, y: Tensor, choose: ChooseTile
) -> Launch:
    """Multiply by the second factor and interleave the outputs: row u of block j is output u*J + j."""
    J, s, depth = layer.w2.shape
    if J not in INTERLEAVED:
        return _blocks(t, layer.w2, depth, layer.bias, residual, act, y, _columns(s, 0, 1, J), choose)
    product = _product(t, layer.w2, depth, interleaved=True)
    shape = {"P": depth, "BLOCKS": J, "N": s, "OUT": y.shape[1], "ACT": int(act)}
    tile = choose(product)
    return Launch("interleaved_product", t, layer.w2, layer.bias, residual, y, product, tile, shape)


def _blocks(
    x: Tensor,
    w: Tensor,
    p: int,
    bias: Tensor | None,
    residual: Tensor | None,
    act: int,
    y: Tensor,
    columns: dict[str, int],
    choose: ChooseTile,
) -> Launch:
    """Multiply every block of p columns of x by its block of w."""
    blocks, n, depth = w.shape
    product = _product(x, w, p, interleaved=False)
    tile = choose(product)
    shape = {"IN": x.shape[1], "P": p, "DEPTH": depth, "BLOCKS": blocks, "N": n, "OUT": y.shape[1], "ACT": int(act)}
    shape |= columns | {"REST": tile.REST}
    return Launch("block_product", x, w, bias, residual, y, product, tile, shape)


def _columns(segment: int, between_segments: int, between_blocks: int, step: int = 1) -> dict[str, int]:
    """Say where row n of block b of w is stored.

    It is column n // segment * between_segments + b * between_blocks + n % segment * step.
    """
    return {"SEGMENT": segment, "BETWEEN_SEGMENTS": between_segments, "BETWEEN_BLOCKS": between_blocks, "STEP": step}


def _product(x: Tensor, w: Tensor, p: int, *, interleaved: bool) -> Product:
    tma = x.shape[1] * x.element_size() % 16 == 0 and p % SMALLEST_DEPTH == 0
    return Product(len(x), len(w), w.shape[1], p, interleaved, tma)
