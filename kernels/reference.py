"""The Monarch product by its definition, slow and plain, since tests compare everything else with it, and in batches.

Source: Monarch (arXiv 2204.00595), section 3.1. With w1 (K, q, p), w2 (J, s, r), K*q = J*r:

    t[a]       = sum_i w1[a div q, a mod q, i] * x[(a div q)*p + i]        a = 0 .. K*q-1
    y[u*J + j] = sum_c w2[j, u, c] * t[c*J + j]                            j = 0 .. J-1, u = 0 .. s-1

The input is cut into K contiguous chunks; output block j reads the intermediates a = j (mod J) and writes the
outputs j, j+J, j+2J, ...
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from .shapes import MonarchShape


def monarch_reference(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """Compute y = M x by the definition: x (..., K*p) -> (..., J*s), same dtype and device.

    Raises:
        ValueError: the factors do not chain, or the input is not exactly K*p wide.
    """
    shape = MonarchShape.of(w1, w2)
    if x.shape[-1] != shape.in_extended:
        raise ValueError(f"input of width {x.shape[-1]}: the definition takes exactly {shape.in_extended}")
    chunks = x.unflatten(-1, (shape.K, shape.p))
    t = torch.einsum("kqp,...kp->...kq", w1, chunks).flatten(-2)
    residues = t.unflatten(-1, (shape.r, shape.J))
    return torch.einsum("jsr,...rj->...sj", w2, residues).flatten(-2)


def monarch_to_dense(w1: Tensor, w2: Tensor, out_features: int | None = None, in_features: int | None = None) -> Tensor:
    """Return the equivalent dense weight (out_features, in_features), y = W x.

    W[u*J + j, k*p + i] = sum over rows v with (k*q + v) mod J = j of w2[j, u, (k*q + v) div J] * w1[k, v, i]
    """
    shape = MonarchShape.of(w1, w2)
    identity = torch.eye(shape.in_extended, dtype=w1.dtype, device=w1.device)
    dense = monarch_reference(identity, w1, w2).T
    columns = shape.in_extended if in_features is None else in_features
    rows = shape.check(columns, out_features)
    return dense[:rows, :columns].contiguous()


def monarch_batched(
    x: Tensor, w1: Tensor, w2: Tensor, bias: Tensor | None = None, out_features: int | None = None
) -> Tensor:
    """Compute M x + bias by two batched products: x (..., n) with n <= K*p -> (..., out_features), the first of J*s.

    Differentiable, on any device: the path of training and of devices without a kernel of their own. It pays for two
    permutation copies, between the factors and at the end; `feature_major` and the CUDA kernels do not.
    """
    # On a CPU bmm copies inputs and gradients that are not contiguous, again in every product that reads them, and in
    # bfloat16 column by column: they are made contiguous before.
    shape = MonarchShape.of(w1, w2)
    wide = x if x.shape[-1] == shape.in_extended else F.pad(x, (0, shape.in_extended - x.shape[-1]))
    chunks = wide.reshape(-1, shape.K, shape.p).transpose(0, 1)
    rows = chunks.shape[1]
    t = torch.bmm(chunks.contiguous() if x.is_cpu else chunks, w1.transpose(1, 2))  # (K, M, q)
    _contiguous_gradient(t)
    t = t.transpose(0, 1).reshape(rows, shape.r, shape.J).permute(2, 0, 1).contiguous()  # (J, M, r)
    y = torch.bmm(t, w2.transpose(1, 2))  # (J, M, s)
    _contiguous_gradient(y)
    y = y.permute(1, 2, 0).reshape(rows, shape.out_extended)[:, :out_features]
    if bias is not None:
        y = y + bias.to(y.dtype)
    return y.reshape(*x.shape[:-1], y.shape[1])


def _contiguous_gradient(tensor: Tensor) -> None:
    """Make a tensor's gradient contiguous before backward products read it."""
    if tensor.requires_grad:
        tensor.register_hook(Tensor.contiguous)
