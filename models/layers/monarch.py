"""MonarchLinear is a linear layer whose weight is a Monarch matrix, with fly's shapes and state-dict keys."""

from typing import ClassVar

from torch import Tensor, nn

from ...kernels.ops import monarch_linear
from ...kernels.reference import monarch_to_dense
from .structured import StructuredLinear


class MonarchLinear(StructuredLinear):
    """y = M x + bias with M a Monarch matrix: x (..., in_features) -> (..., out_features).

    Parameters `bias` (out_features,), `blkdiag1` (nblocks, q, p), `blkdiag2` (nblocks, s, q), in this order in the
    state dict. Widths that nblocks does not divide are padded: zeros are appended to inputs, and outputs are cut.

    Args:
        in_features, out_features: widths of the layer.
        bias: add a bias.
        nblocks: blocks of each factor (the paper's vision models use 4).
        rank: rank of each sub-block; None gives fly's shapes (see `monarch_shapes`).
    """

    kind: ClassVar[str] = "monarch"

    nblocks: int
    rank: int | None
    blkdiag1: nn.Parameter
    blkdiag2: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        return monarch_linear(x, self.blkdiag1, self.blkdiag2, self.bias, out_features=self.out_features)

    def dense_weight(self) -> Tensor:
        return monarch_to_dense(self.blkdiag1, self.blkdiag2, self.out_features, self.in_features)

    def monarch_factors(self) -> tuple[Tensor, Tensor]:
        return self.blkdiag1, self.blkdiag2
