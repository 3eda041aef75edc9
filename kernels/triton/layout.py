"""The Monarch layout of the Triton kernels: both permutations folded into the order of the weights, for any shape.

As in `blocked`, the rows of the first factor are sorted by the output block that reads them, so that what an output
block reads is contiguous:

    t[j*K*c + k*c + i]  is the i-th row v of input block k with (k*q + v) mod J = j

and c, the most such rows, is rounded up to 8 for 16-byte stores (padding has zero weights). Unlike in `blocked`, K, J
and the blocks' widths may be any numbers, and an MLP's hidden features are sorted in the same way: those that block j
of fc1 gives to input block k of fc2 are contiguous, at k*J*c + j*c + i.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..blocked import Activation, activated, sort_factors
from ..shapes import MonarchShape

VECTOR = 8
"""Numbers in a 16-byte access."""

DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class SortedMonarch:
    """A Monarch layer in the sorted layout, on one device.

    Args:
        w1: (K, J*c, p rounded up to 8): rows sorted by output block.
        w2: (J, s, K*c); in an MLP's first layer (J, groups*c', K*c), with rows sorted by the next layer's input block.
        bias: (J, rows of w2), float32, or None.
        p: columns of the input that a block reads.
        out_features: output columns; in an MLP's first layer those of the hidden features, padding included.
    """

    w1: Tensor
    w2: Tensor
    bias: Tensor | None
    p: int
    out_features: int

    @property
    def K(self) -> int:
        return self.w1.shape[0]

    @property
    def J(self) -> int:
        return self.w2.shape[0]

    @property
    def c(self) -> int:
        """Rows of w1 that an input block has for an output block."""
        return self.w1.shape[1] // self.J

    def check(self) -> None:
        """Check that the tensors are of one layer.

        Raises:
            ValueError: they are not.
        """
        depth = -(-self.p // VECTOR) * VECTOR
        fits = (
            self.w1.dim() == self.w2.dim() == 3
            and self.w1.shape[1] == self.J * self.c
            and self.w1.shape[2] == depth
            and self.w2.shape[2] == self.K * self.c
            and (self.bias is None or self.bias.shape == self.w2.shape[:2])
            and 0 < self.out_features <= self.J * self.w2.shape[1]
        )
        if not fits:
            shapes = ", ".join(str(tuple(t.shape)) for t in (self.w1, self.w2, self.bias) if t is not None)
            raise ValueError(f"not a sorted Monarch layer of p {self.p} and {self.out_features} outputs: {shapes}")


def sort_layer(w1: Tensor, w2: Tensor, bias: Tensor | None, out_features: int, dtype: torch.dtype) -> SortedMonarch:
    """Lay out a layer: factors (K, q, p) and (J, s, r), bias (out_features,) or None.

    Raises:
        ValueError: the tensors do not fit each other.
    """
    shape = MonarchShape.of(w1, w2)
    shape.check(0, out_features)
    if bias is not None and bias.shape != (out_features,):
        raise ValueError(f"bias of shape {tuple(bias.shape)}: the layer has {out_features} outputs")
    c, depth = (-(-length // VECTOR) * VECTOR for length in (-(-shape.q // shape.J), shape.p))
    first, second = sort_factors(w1, w2, c, depth, dtype)
    ready = None
    if bias is not None:
        padded = F.pad(bias.detach().float(), (0, shape.out_extended - out_features))
        ready = padded.view(shape.s, shape.J).t().contiguous()
    return SortedMonarch(first, second, ready, shape.p, out_features)


def sort_mlp(fc1: SortedMonarch, fc2: SortedMonarch, hidden_features: int) -> tuple[SortedMonarch, SortedMonarch]:
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
    first = SortedMonarch(fc1.w1, w2, bias, fc1.p, J * fc2.K * c)
    return first, SortedMonarch(w1.transpose(1, 2).contiguous(), fc2.w2, fc2.bias, J * c, fc2.out_features)


def sorted_reference(x: Tensor, layer: SortedMonarch, act: int, residual: Tensor | None) -> Tensor:
    """Compute act(M x + bias) + residual in plain PyTorch, rounding where the kernels do.

    Args:
        x: (M, in_features), with at most K*p features.
        act: a `blocked.Activation`.
        residual: (M, out_features) or None.
    """
    y = _second_factor(x, layer).permute(1, 2, 0).flatten(1)[:, : layer.out_features]
    y = activated(y, act)
    return (y if residual is None else y + residual.float()).to(x.dtype)


def sorted_mlp_reference(x: Tensor, fc1: SortedMonarch, fc2: SortedMonarch, residual: Tensor | None) -> Tensor:
    """Compute fc2(gelu(fc1(x))) + residual for layers from `sort_mlp`."""
    J, rows, _ = fc1.w2.shape
    hidden = activated(_second_factor(x, fc1), Activation.GELU).to(x.dtype)  # (J, M, groups*c)
    hidden = hidden.view(J, len(x), fc2.K, rows // fc2.K).permute(1, 2, 0, 3).flatten(1)
    return sorted_reference(hidden, fc2, Activation.NONE, residual)


def _second_factor(x: Tensor, layer: SortedMonarch) -> Tensor:
    """Return the product before activation, (J, M, rows of w2), float32."""
    rows, K, J = len(x), layer.K, layer.J
    wide = F.pad(x.float(), (0, K * layer.p - x.shape[1]))
    chunks = wide.view(rows, K, layer.p).transpose(0, 1)
    t = torch.bmm(chunks, layer.w1[:, :, : layer.p].float().transpose(1, 2)).to(x.dtype)  # (K, M, J*c)
    t = t.view(K, rows, J, layer.c).permute(2, 1, 0, 3).reshape(J, rows, K * layer.c)
    y = torch.bmm(t.float(), layer.w2.float().transpose(1, 2))
    return y if layer.bias is None else y + layer.bias.unsqueeze(1)
