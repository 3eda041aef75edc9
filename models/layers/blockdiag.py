"""BlockdiagLinear is a linear layer whose weight is block-diagonal, with fly's shapes and state-dict keys."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .structured import StructuredLinear


class BlockdiagLinear(StructuredLinear):
    """y = diag(W_1 .. W_N) P x + bias: x (..., in_features) -> (..., out_features).

    Parameters `bias` (out_features,), `weight` (nblocks, s, p) with p = ceil(in/N), s = ceil(out/N). Widths that
    nblocks does not divide are padded: zeros are appended to inputs, and outputs are cut.

    Args:
        in_features, out_features: widths of the layer.
        bias: add a bias.
        nblocks: N, the number of blocks on the diagonal.
        shuffle: whether P is ShuffleNet's channel shuffle of the padded input (`shuffled`), or the identity.
    """

    kind: ClassVar[str] = "blockdiag"

    nblocks: int
    shuffle: bool
    weight: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        nblocks, s, p = self.weight.shape
        rows = F.pad(x.reshape(-1, x.shape[-1]), (0, nblocks * p - self.in_features))
        blocks = shuffled(rows, nblocks) if self.shuffle else rows
        y = torch.bmm(blocks.view(len(rows), nblocks, p).transpose(0, 1), self.weight.transpose(1, 2))  # (N, rows, s)
        y = y.transpose(0, 1).reshape(len(rows), nblocks * s)[:, : self.out_features]
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y.reshape(*x.shape[:-1], self.out_features)

    def dense_weight(self) -> Tensor:
        dense = torch.block_diag(*self.weight)
        if self.shuffle:
            places = torch.arange(dense.shape[1], device=dense.device)
            dense = torch.empty_like(dense).index_copy(1, shuffled(places, self.nblocks), dense)
        return dense[: self.out_features, : self.in_features].contiguous()


def shuffled(x: Tensor, nblocks: int) -> Tensor:
    """ShuffleNet's channel shuffle (arXiv 1707.01083) of the last dimension: element g*p + c moves to c*nblocks + g."""
    return x.unflatten(-1, (nblocks, -1)).transpose(-1, -2).flatten(-2)
