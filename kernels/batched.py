"""The Monarch product as two batched matrix products: differentiable, any device, any dtype.

This is the path of training and of devices that have no kernel of their own. It pays for two permutation copies
(between the factors and at the end); `feature_major` and the CUDA kernels do not.
"""

import torch
from torch import Tensor

from .shapes import MonarchShape


def monarch_batched(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """x (M, K*p) -> (M, J*s), differentiable in all three arguments."""
    shape = MonarchShape.of(w1, w2)
    rows = x.shape[0]
    t = torch.bmm(x.view(rows, shape.K, shape.p).transpose(0, 1), w1.transpose(1, 2))  # (K, M, q)
    t = t.transpose(0, 1).reshape(rows, shape.r, shape.J).permute(2, 0, 1)  # (J, M, r)
    y = torch.bmm(t, w2.transpose(1, 2))  # (J, M, s)
    return y.permute(1, 2, 0).reshape(rows, shape.out_extended)
