"""The flat block butterfly: which blocks of a matrix it keeps, and how their product is grouped.

Source: Pixelfly (arXiv 2112.00029), section 3: the first factors of a butterfly, added instead of multiplied, and
made of blocks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


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
        chosen = torch.argsort(coarse, dim=1, descending=True, stable=True)[:, : int(coarse.sum(1).max())]
        read = (chosen[:, :, None] * chunk + torch.arange(chunk, device="cpu")).flatten(1)
        spread = read[:, None, :].expand(-1, together, -1)
        return cls(chosen, number.view(-1, together, columns).gather(2, spread))

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
