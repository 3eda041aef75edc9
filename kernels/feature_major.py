"""The Monarch product for inference on a CPU: features outermost, so both permutations are strides, not copies.

With X held as (features, M) the intermediate (K*q, M) is, without moving anything, the (r, J, M) array whose
transpose feeds the second product, and the second product writes its (J, s, M) result through a transposed view of
(s, J, M), which is the interleaved output order. BLAS takes such views as they are (the last dimension is
contiguous). Only the transposes at the two ends of a layer, or of a whole MLP, copy.
"""

import torch
from torch import Tensor

from .packing import PackedMonarch


def _product(xt: Tensor, packed: PackedMonarch) -> Tensor:
    """(K*p, M) -> (out_features, M), bias added."""
    shape, columns = packed.shape, xt.shape[1]
    t = torch.bmm(packed.w1, xt.view(shape.K, shape.p, columns))  # (K, q, M)
    y = torch.empty(shape.s, shape.J, columns, dtype=xt.dtype, device=xt.device)
    torch.bmm(packed.w2, t.view(shape.r, shape.J, columns).transpose(0, 1), out=y.transpose(0, 1))
    y = y.view(shape.out_extended, columns)[: packed.out_features]
    return y if packed.bias is None else y.add_(packed.bias)


def _enter(x: Tensor, packed: PackedMonarch) -> Tensor:
    """(M, in_features) -> (K*p, M), zero rows where the layer is padded."""
    rows, width = x.shape
    if width == packed.shape.in_extended:
        return x.t().contiguous()
    xt = x.new_zeros(packed.shape.in_extended, rows)
    xt[:width] = x.t()
    return xt


def feature_major_linear(x: Tensor, packed: PackedMonarch) -> Tensor:
    """x (M, in_features) -> (M, out_features), contiguous. Inference only: it writes in place."""
    return _product(_enter(x, packed), packed).t().contiguous()


def feature_major_mlp(x: Tensor, fc1: PackedMonarch, fc2: PackedMonarch) -> Tensor:
    """fc2(GELU(fc1(x))), exact erf GELU: (M, in_features of fc1) -> (M, out_features of fc2).

    The hidden activations stay feature-major, so one transpose in and one out serve both layers.
    """
    hidden = torch.ops.aten.gelu_(_product(_enter(x, fc1), fc1))
    padding = fc2.shape.in_extended - hidden.shape[0]
    if padding:
        hidden = torch.nn.functional.pad(hidden, (0, 0, 0, padding))
    return _product(hidden, fc2).t().contiguous()
