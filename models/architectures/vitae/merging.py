"""Makes normal cells compute attention and MLP for fewer tokens, and give the results back to all.

Source: tokens are merged as in Token Merging (arXiv 2210.09461) and restored as in its use for Stable Diffusion (arXiv
2303.17604). The grid that the convolutions read keeps all of its tokens.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....kernels.triton.token_merging import log_sizes, matched, merged, places, rows
from ...layers.token_plan import TokenPlan
from .attention import MultiHeadAttention
from .normal import NormalCell


class MergingCell(NormalCell):
    """A normal cell whose most similar tokens share one attention and one MLP; tokens (B, N, dim) in and out.

    The convolution branch reads all tokens. Attention and MLP read means: of what each group of tokens is at the cell's
    input, and with the branch added. Every token of a group gets their results added to what it is itself.

    Args:
        cell: the cell whose parts it takes over.
        plan: the plan of the model; it says how many tokens merge.
    """

    attn: MultiHeadAttention

    def __init__(self, cell: NormalCell, plan: TokenPlan) -> None:
        nn.Module.__init__(self)
        for name, child in cell.named_children():
            self.add_module(name, child)
        self.class_token, self.plan = cell.class_token, plan

    def forward(self, x: Tensor) -> Tensor:
        prefix = int(self.class_token)
        patches = int(x.shape[1]) - prefix
        assert self.plan.merging is not None
        count = self.plan.merging.count(patches)
        if not count:
            return super().forward(x)
        branch = self._branch(x)
        order, nearest = matched(x[:, prefix:])
        both, size = merged(torch.cat([x, branch], dim=-1), None, order, nearest, count, prefix)
        few, few_branch = both.chunk(2, dim=-1)
        y = self.attn.masked(self.norm1(few), log_sizes(size, x))
        y = y + self.mlp(self.norm2(few + few_branch + y))
        place = F.pad(places(order, nearest, count, patches) + prefix, (prefix, 0))
        return x + branch + rows(y, place)

    def extra_repr(self) -> str:
        return f"merging={self.plan.merging}"


def attending_cells(model: Any) -> list[tuple[nn.ModuleList, int]]:
    """The normal cells of a ViTAE whose attention is over all tokens, as lists and places in them, in order."""
    places = ((stage.NC, i) for stage in model.layers for i in range(len(stage.NC)))
    return [(cells, i) for cells, i in places if type(cells[i].attn) is MultiHeadAttention]


def merge_in_cells(model: nn.Module, plan: TokenPlan) -> None:
    """Make the cells of a plan merge tokens, in place; names of parameters stay."""
    assert plan.merging is not None
    for cells, i in attending_cells(model)[plan.merging.start :: plan.merging.every]:
        cell = cells[i]
        assert isinstance(cell, NormalCell)
        cells[i] = MergingCell(cell, plan)
