"""The flat block butterfly: which blocks of a matrix it keeps, and how their product is grouped.

Source: Pixelfly (arXiv 2112.00029), section 3: the first factors of a butterfly, added instead of multiplied, and
made of blocks.
"""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from .structured import check_widths

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

    def layout(self) -> Tensor:
        """The blocks that are kept: bool (rows, columns) on the CPU.

        The mask of side B keeps (i, j) where i = j or i xor j is one of the first f powers of two. Each of its cells
        covers 1/B of the matrix in both directions. A block is kept where it overlaps a kept cell or one of the global
        rows and columns.
        """
        size = self.butterfly_size
        index = torch.arange(size, device="cpu")
        distance = index[:, None] ^ index
        powers = torch.tensor([0, *(2**e for e in range(self.n_factors))], device="cpu")
        kept = torch.isin(distance, powers).float()
        layout = (
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


def _overlaps(blocks: int, block_size: int, cells: int) -> Tensor:
    """1 where a block overlaps a cell in one direction, else 0: float (blocks, cells)."""
    cell = blocks * block_size // cells
    first_of_block = torch.arange(blocks, device="cpu")[:, None] * block_size
    first_of_cell = torch.arange(cells, device="cpu") * cell
    return ((first_of_block < first_of_cell + cell) & (first_of_cell < first_of_block + block_size)).float()


@dataclass(frozen=True)
class Gathering:
    """A block-sparse product as one batched dense product: rows of blocks that read the same columns form a group.

    Args:
        columns: (groups, c) the chunks of the input that each group reads. A chunk is a run of columns of blocks that
            are always read together.
        blocks: (groups, rows of a group, columns of blocks read) indices into the list of kept blocks, which is in
            row-major order. Groups that read less than others are padded with an index one past the list.
    """

    columns: Tensor
    blocks: Tensor

    @classmethod
    def of(cls, layout: Tensor) -> "Gathering":
        """Group the blocks that are kept, bool (rows, columns)."""
        rows, columns = layout.shape
        together, chunk = _alike(layout), _alike(layout.T)
        number = torch.where(layout.flatten(), layout.flatten().cumsum(0) - 1, layout.sum()).view(rows, columns)
        coarse = layout[::together, ::chunk].to(torch.uint8)
        # A stable sort puts the kept chunks first, in order; the widest group says how many are taken.
        taken = torch.argsort(coarse, dim=1, descending=True, stable=True)[:, : int(coarse.sum(1).max())]
        read = (taken[:, :, None] * chunk + torch.arange(chunk, device="cpu")).flatten(1)
        spread = read[:, None, :].expand(-1, together, -1)
        return cls(taken, number.view(-1, together, columns).gather(2, spread))

    def to(self, device: torch.device) -> "Gathering":
        """A copy on a device."""
        return Gathering(self.columns.to(device), self.blocks.to(device))

    def weight(self, blocks: Tensor) -> Tensor:
        """Arrange kept blocks (n, b, b) as one matrix a group: (groups, c*b, rows of a group * b)."""
        groups, rows, columns = self.blocks.shape
        side = blocks.shape[-1]
        padded = torch.cat([blocks, blocks.new_zeros(1, side, side)])
        gathered = padded[self.blocks]  # (groups, rows, c, b out, b in)
        return gathered.permute(0, 2, 4, 1, 3).reshape(groups, columns * side, rows * side)


def gathered_product(x: Tensor, columns: Tensor, weight: Tensor) -> Tensor:
    """S x of a block-sparse matrix: x (M, padded input width) -> (M, padded output width).

    Args:
        columns: `columns` of a Gathering.
        weight: result of the Gathering's `weight`.
    """
    groups, count = columns.shape
    side = weight.shape[1] // count
    rows, width = x.shape  # not len(x), which an exporter takes for a constant
    read = x.view(rows, width // side, side).index_select(1, columns.flatten())  # (M, groups * c, b)
    y = torch.bmm(read.view(rows, groups, count * side).transpose(0, 1), weight)  # (groups, M, rows * b)
    return y.transpose(0, 1).reshape(rows, groups * weight.shape[2])


def _alike(layout: Tensor) -> int:
    """The size of the largest equal groups of rows in which all rows keep the same columns."""
    rows, columns = layout.shape
    groupings = ((n, layout.reshape(-1, n, columns)) for n in range(rows, 0, -1) if rows % n == 0)
    return next(n for n, groups in groupings if bool((groups == groups[:, :1]).all()))
