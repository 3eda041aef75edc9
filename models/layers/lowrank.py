"""LowRankLinear is a linear layer whose weight is a product of two thin matrices, with fly's state-dict keys."""

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from .structured import StructuredLinear


class LowRankLinear(StructuredLinear):
    """y = W2 W1 x + bias: x (..., in_features) -> (..., out_features).

    Parameters `bias` (out_features,), `lr_weight1` (rank, in_features), `lr_weight2` (out_features, rank). W2 W1
    is a Monarch matrix of one block, and runs on the same kernels.

    Args:
        in_features, out_features: widths of the layer.
        bias: add a bias.
        rank: rank of W2 W1; it must be given.
    """

    kind: ClassVar[str] = "lowrank"

    rank: int
    lr_weight1: nn.Parameter
    lr_weight2: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.lr_weight1), self.lr_weight2, self.bias)

    def dense_weight(self) -> Tensor:
        return self.lr_weight2 @ self.lr_weight1

    def monarch_factors(self) -> tuple[Tensor, Tensor]:
        return self.lr_weight1.unsqueeze(0), self.lr_weight2.unsqueeze(0)
