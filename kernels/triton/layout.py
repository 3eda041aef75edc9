"""The blocked layout (`blocked`) of the Triton kernels, for any shape, and that of an MLP.

K, J and the blocks' widths may be any numbers. An MLP's hidden features are sorted in the same way as what lies between
two factors: those that block j of fc1 gives to input block k of fc2 are contiguous, at k*J*c + j*c + i.
"""

import torch
from torch import Tensor

from ..blocked import VECTOR, Activation, BlockedMonarch, activated, blocked_product, blocked_reference, lay_out
from ..shapes import MonarchShape


def sort_layer(w1: Tensor, w2: Tensor, bias: Tensor | None, out_features: int, dtype: torch.dtype) -> BlockedMonarch:
    """Lay out a layer: factors (K, q, p) and (J, s, r), bias (out_features,) or None; c is rounded up to 8.

    Raises:
        ValueError: the tensors do not fit each other.
    """
    shape = MonarchShape.of(w1, w2)
    shape.check(0, out_features)
    c, depth = (-(-length // VECTOR) * VECTOR for length in (-(-shape.q // shape.J), shape.p))
    return lay_out(w1, w2, bias, out_features, c, depth, dtype)


def check_layer(layer: BlockedMonarch) -> None:
    """Check that the tensors are of one layer.

    Raises:
        ValueError: they are not.
    """
    w1, w2, bias = layer.w1, layer.w2, layer.bias
    fits = (
        w1.dim() == w2.dim() == 3
        and w1.shape[1] == layer.J * layer.c
        and w1.shape[2] == -(-layer.p // VECTOR) * VECTOR
        and w2.shape[2] == layer.K * layer.c
        and (bias is None or bias.shape == w2.shape[:2])
        and 0 < layer.out_features <= layer.J * w2.shape[1]
    )
    if not fits:
        shapes = ", ".join(str(tuple(t.shape)) for t in (w1, w2, bias) if t is not None)
        raise ValueError(f"not a sorted Monarch layer of p {layer.p} and {layer.out_features} outputs: {shapes}")


def sort_mlp(fc1: BlockedMonarch, fc2: BlockedMonarch, hidden_features: int) -> tuple[BlockedMonarch, BlockedMonarch]:
    """Give the hidden features of two layers an order in which neither has to permute them.

    Args:
        fc1, fc2: layers from `sort_layer`.
        hidden_features: outputs of fc1 and inputs of fc2, without padding.

    Raises:
        ValueError: fc2 does not take what fc1 gives.
    """
    if fc1.out_features != hidden_features or hidden_features > fc2.K * fc2.p:
        raise ValueError(f"fc1 gives {fc1.out_features} features, fc2 takes {hidden_features} of {fc2.K * fc2.p}")
    J, s, _ = fc1.w2.shape
    block = torch.arange(J, device=fc1.w2.device).view(-1, 1)  # j of each row of fc1's second factor
    row = torch.arange(s, device=fc1.w2.device)  # u
    natural = row * J + block
    exists = natural < hidden_features
    group = natural // fc2.p  # input block of fc2
    slot = row - (group * fc2.p - block + J - 1) // J  # less the first row of the block that belongs to the group
    c = -(-(int(slot[exists].max()) + 1) // VECTOR) * VECTOR
    j, u = exists.nonzero(as_tuple=True)
    k, i, column = group[exists], slot[exists], natural[exists] % fc2.p

    w2 = fc1.w2.new_zeros((J, fc2.K * c, fc1.w2.shape[2]))
    w2[j, k * c + i] = fc1.w2[j, u]
    bias = None
    if fc1.bias is not None:
        bias = fc1.bias.new_zeros((J, fc2.K * c))
        bias[j, k * c + i] = fc1.bias[j, u]
    w1 = fc2.w1.new_zeros((fc2.K, J * c, fc2.w1.shape[1]))
    w1[k, j * c + i] = fc2.w1[k, :, column]
    first = BlockedMonarch(fc1.w1, w2, bias, fc1.p, J * fc2.K * c)
    return first, BlockedMonarch(w1.transpose(1, 2).contiguous(), fc2.w2, fc2.bias, J * c, fc2.out_features)


def sorted_mlp_reference(x: Tensor, fc1: BlockedMonarch, fc2: BlockedMonarch, residual: Tensor | None) -> Tensor:
    """Compute fc2(gelu(fc1(x))) + residual for layers from `sort_mlp`, in plain PyTorch, rounding as the kernels do."""
    J, rows, _ = fc1.w2.shape
    hidden = activated(blocked_product(x, fc1), Activation.GELU).to(x.dtype)  # (J, M, groups*c)
    hidden = hidden.view(J, len(x), fc2.K, rows // fc2.K).permute(1, 2, 0, 3).flatten(1)
    return blocked_reference(hidden, fc2, Activation.NONE, residual)
