"""The kinds of structured layers as plain data: their options, and the shapes of their weights.

Source of the flat block butterfly, i.e. of which blocks of a matrix Pixelfly keeps: arXiv 2112.00029, section 3. The
first factors of a butterfly are added instead of multiplied, and made of blocks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Shapes = dict[str, tuple[int, ...]]

MAX_CELLS = 2**22
"""The most blocks and cells of a layout, kept or not. It bounds what a spec from a file can cost to check."""


@dataclass(frozen=True)
class ButterflyShape:
    """A flat block butterfly of a padded matrix.

    Args:
        rows, columns: blocks in each direction of the padded matrix.
        block_size: side of a block.
        butterfly_size: B, the side of the mask that is stretched over the matrix.
        n_factors: f, number of butterfly factors beside the diagonal; 0 gives a block-diagonal matrix.
        global_size: number of first inputs and of first outputs whose blocks are all kept.
    """

    rows: int
    columns: int
    block_size: int
    butterfly_size: int
    n_factors: int
    global_size: int = 0

    @classmethod
    def of(
        cls,
        in_features: int,
        out_features: int,
        block_size: int,
        butterfly_size: int,
        n_factors: int,
        global_size: int = 0,
    ) -> "ButterflyShape":
        """The butterfly of a layer whose widths are padded to whole blocks.

        Raises:
            ValueError: a size outside its limits.
        """
        check_widths(in_features, out_features)
        if not 1 <= block_size <= min(in_features, out_features):
            limit = min(in_features, out_features)
            raise ValueError(f"block_size {block_size} must be between 1 and {limit}, the smaller width")
        rows, columns = ceil(out_features / block_size), ceil(in_features / block_size)
        _check_butterfly(rows * block_size, columns * block_size, butterfly_size, n_factors)
        if not 0 <= global_size <= min(in_features, out_features):
            limit = min(in_features, out_features)
            raise ValueError(f"global_size {global_size} must be between 0 and {limit}, the smaller width")
        cells = max(rows * columns, max(rows, columns, butterfly_size) * butterfly_size)
        if cells > MAX_CELLS:
            raise ValueError(
                f"block_size {block_size} and butterfly_size {butterfly_size} cut {out_features} x {in_features} into "
                f"{cells} cells: at most {MAX_CELLS}"
            )
        return cls(rows, columns, block_size, butterfly_size, n_factors, global_size)

    def layout(self) -> "Tensor":
        """The blocks that are `kept`, as a tensor on the CPU."""
        import torch

        return torch.from_numpy(self.kept())

    def kept(self) -> NDArray[np.bool_]:
        """The blocks that are kept: bool (rows, columns).

        The mask of side B keeps (i, j) where i = j or i xor j is one of the first f powers of two. Each of its cells
        covers 1/B of the matrix in both directions. A block is kept where it overlaps a kept cell or one of the global
        rows and columns.
        """
        size = self.butterfly_size
        index = np.arange(size)
        distance = index[:, None] ^ index
        powers = [0, *(2**e for e in range(self.n_factors))]
        kept = np.isin(distance, powers).astype(np.float32)
        layout: NDArray[np.bool_] = (
            _overlaps(self.rows, self.block_size, size) @ kept @ _overlaps(self.columns, self.block_size, size).T > 0
        )
        always = ceil(self.global_size / self.block_size)
        layout[:always] = layout[:, :always] = True
        return layout


def _check_butterfly(height: int, width: int, butterfly_size: int, n_factors: int) -> None:
    if butterfly_size < 2 or (n_factors and butterfly_size & (butterfly_size - 1)):
        raise ValueError(f"butterfly_size {butterfly_size} must be a power of two, at least 2")
    for extended in (width, height):
        if extended % butterfly_size:
            raise ValueError(f"butterfly_size {butterfly_size} must divide the padded widths: {extended} it does not")
    if not 0 <= n_factors < butterfly_size.bit_length():
        limit = butterfly_size.bit_length() - 1
        raise ValueError(f"n_factors {n_factors} must be between 0 and {limit}, the logarithm of butterfly_size")


def _overlaps(blocks: int, block_size: int, cells: int) -> NDArray[np.float32]:
    """1 where a block overlaps a cell in one direction, else 0: float (blocks, cells)."""
    cell = blocks * block_size // cells
    first_of_block = np.arange(blocks)[:, None] * block_size
    first_of_cell = np.arange(cells) * cell
    return ((first_of_block < first_of_cell + cell) & (first_of_cell < first_of_block + block_size)).astype(np.float32)


def monarch_shapes(
    in_features: int, out_features: int, nblocks: int, rank: int | None = None
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Shapes of blkdiag1 (N, q, p) and blkdiag2 (N, s, q): p = ceil(in/N), s = ceil(out/N).

    q = min(p, s) as in fly (arXiv 2204.00595), or rank * N when `rank`, the rank of each of the N*N sub-blocks,
    is given. N = 1 with a rank is a low-rank layer.

    Raises:
        ValueError: nblocks or rank outside their limits.
    """
    p, s = check_nblocks(in_features, out_features, nblocks)
    if rank is not None and not 1 <= rank <= min(p, s):
        raise ValueError(f"rank {rank} must be between 1 and {min(p, s)}, the smaller side of a sub-block")
    q = min(p, s) if rank is None else rank * nblocks
    return (nblocks, q, p), (nblocks, s, q)


def monarch_weights(in_features: int, out_features: int, nblocks: int, rank: int | None) -> Shapes:
    """Shapes of a monarch layer's weights, by key."""
    shape1, shape2 = monarch_shapes(in_features, out_features, nblocks, rank)
    return {"blkdiag1": shape1, "blkdiag2": shape2}


def lowrank_weights(in_features: int, out_features: int, rank: int | None) -> Shapes:
    """Shapes of a lowrank layer's weights, by key."""
    check_widths(in_features, out_features)
    rank = check_rank(in_features, out_features, rank, "lowrank")
    return {"lr_weight1": (rank, in_features), "lr_weight2": (out_features, rank)}


def blockdiag_weights(in_features: int, out_features: int, nblocks: int, shuffle: bool) -> Shapes:
    """Shapes of a blockdiag layer's weights, by key."""
    p, s = check_nblocks(in_features, out_features, nblocks)
    return {"weight": (nblocks, s, p)}


def pixelfly_weights(
    in_features: int,
    out_features: int,
    rank: int | None,
    block_size: int,
    butterfly_size: int,
    n_factors: int,
    gating: bool,
    global_size: int,
) -> Shapes:
    """Shapes of a pixelfly layer's weights, by key."""
    shape = ButterflyShape.of(in_features, out_features, block_size, butterfly_size, n_factors, global_size)
    rank = check_rank(in_features, out_features, rank, "pixelfly", least=0)
    if gating and not rank:
        raise ValueError("gating true: rank 0 leaves nothing to mix, gating must be false")
    shapes: Shapes = {"sparse.weight": (int(shape.kept().sum()), block_size, block_size)}
    if rank:
        shapes |= {"low_rank.lr_weight1": (rank, in_features), "low_rank.lr_weight2": (out_features, rank)}
    if gating:
        shapes |= {"gate.weight": (1, in_features), "gate.bias": (1,)}
    return shapes


def check_widths(in_features: int, out_features: int) -> None:
    """Raise ValueError where a width is below 1."""
    if in_features < 1 or out_features < 1:
        raise ValueError(f"in_features {in_features} and out_features {out_features} must be at least 1")


def check_nblocks(in_features: int, out_features: int, nblocks: int) -> tuple[int, int]:
    """Widths of a block, p = ceil(in/N) and s = ceil(out/N).

    Raises:
        ValueError: nblocks outside its limits, or a width below 1.
    """
    check_widths(in_features, out_features)
    if not 1 <= nblocks <= min(in_features, out_features):
        raise ValueError(f"nblocks {nblocks} must be between 1 and {min(in_features, out_features)}, the smaller width")
    return -(-in_features // nblocks), -(-out_features // nblocks)


def check_rank(in_features: int, out_features: int, rank: int | None, kind: str, least: int = 1) -> int:
    """The rank of a low-rank matrix.

    Raises:
        ValueError: none given, or one outside its limits.
    """
    if rank is None:
        raise ValueError(f"rank None: a {kind} structure needs a rank")
    if not least <= rank <= min(in_features, out_features):
        limit = min(in_features, out_features)
        raise ValueError(f"rank {rank} must be between {least} and {limit}, the smaller width")
    return rank


@dataclass(frozen=True)
class StructureKind:
    """A kind of structured layer.

    Args:
        name: in sentences.
        option_names: the fields of `LayerSpec` that describe it.
        weight_shapes: shapes of the parameters beside `bias`, by key, of its widths and options; raises ValueError for
            widths or options outside their limits.
    """

    name: str
    option_names: tuple[str, ...]
    weight_shapes: Callable[..., Shapes]


_PIXELFLY = ("rank", "block_size", "butterfly_size", "n_factors", "gating", "global_size")

KINDS: Mapping[str, StructureKind] = {
    "monarch": StructureKind("Monarch", ("nblocks", "rank"), monarch_weights),
    "lowrank": StructureKind("low-rank", ("rank",), lowrank_weights),
    "blockdiag": StructureKind("block-diagonal", ("nblocks", "shuffle"), blockdiag_weights),
    "pixelfly": StructureKind("Pixelfly", _PIXELFLY, pixelfly_weights),
}
