"""The Monarch product for inference on a CPU, with features outermost: both permutations are strides, not copies.

With X held as (features, M) the intermediate (K*q, M) is, without moving anything, the (r, J, M) array whose
transpose feeds the second product, and the second product writes its (J, s, M) result through a transposed view of
(s, J, M), which is the interleaved output order. BLAS takes such views as they are, and the transposed input too. Only
the transpose at the end of a layer, or of a whole MLP, copies.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from .packing import PackedMonarch


def _product(chunks: Tensor, packed: PackedMonarch) -> Tensor:
    """Multiply (K, p, M), of any strides, to (out_features, M), bias included."""
    shape, columns = packed.shape, chunks.shape[2]
    t = chunks.new_empty(packed.w2.shape[2], shape.J, columns)  # (r, J, M), and a slab of ones for the bias
    torch.bmm(packed.w1, chunks, out=t[: shape.r].view(shape.K, shape.q, columns))
    if packed.has_bias:
        t[-1] = 1
    y = chunks.new_empty(shape.s, shape.J, columns)
    torch.bmm(packed.w2, t.transpose(0, 1), out=y.transpose(0, 1))
    return y.view(shape.out_extended, columns)[: packed.out_features]


def _enter(x: Tensor, packed: PackedMonarch) -> Tensor:
    """View (M, in_features) as (K, p, M); only a padded layer needs a copy, since BLAS takes a transpose as it is."""
    shape = packed.shape
    if x.shape[1] < shape.in_extended:
        x = F.pad(x, (0, shape.in_extended - x.shape[1]))
    return x.view(len(x), shape.K, shape.p).permute(1, 2, 0)


def feature_major_linear(x: Tensor, packed: PackedMonarch) -> Tensor:
    """x (M, in_features) -> (M, out_features), contiguous. Inference only: it writes into buffers of its own."""
    return _product(_enter(x, packed), packed).t().contiguous()


def feature_major_mlp(x: Tensor, fc1: PackedMonarch, fc2: PackedMonarch) -> Tensor:
    """fc2(GELU(fc1(x))), exact erf GELU: (M, in_features of fc1) -> (M, out_features of fc2).

    The hidden activations stay feature-major, so the only copy is the transpose at the end.
    """
    hidden = torch.ops.aten.gelu_(_product(_enter(x, fc1), fc1))
    shape = fc2.shape
    if len(hidden) < shape.in_extended:
        hidden = F.pad(hidden, (0, 0, 0, shape.in_extended - len(hidden)))
    return _product(hidden.view(shape.K, shape.p, -1), fc2).t().contiguous()
