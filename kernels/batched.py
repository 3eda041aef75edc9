"""The Monarch product as two batched matrix products: differentiable, any device, any dtype.

This is the path of training and of devices that have no kernel of their own. It pays for two permutation copies
(between the factors and at the end); `feature_major` and the CUDA kernels do not.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from .shapes import MonarchShape


def monarch_batched(
    x: Tensor, w1: Tensor, w2: Tensor, bias: Tensor | None = None, out_features: int | None = None
) -> Tensor:
    """M x + bias, x (..., n) with n <= K*p -> (..., out_features), the first of J*s; differentiable in all tensors."""
    shape = MonarchShape.of(w1, w2)
    wide = x if x.shape[-1] == shape.in_extended else F.pad(x, (0, shape.in_extended - x.shape[-1]))
    chunks = wide.reshape(-1, shape.K, shape.p)
    rows = chunks.shape[0]
    t = torch.bmm(chunks.transpose(0, 1), w1.transpose(1, 2))  # (K, M, q)
    t = t.transpose(0, 1).reshape(rows, shape.r, shape.J).permute(2, 0, 1)  # (J, M, r)
    y = torch.bmm(t, w2.transpose(1, 2))  # (J, M, s)
    y = y.permute(1, 2, 0).reshape(rows, shape.out_extended)[:, :out_features]
    if bias is not None:
        y = y + bias.to(y.dtype)
    return y.reshape(*x.shape[:-1], y.shape[1])
