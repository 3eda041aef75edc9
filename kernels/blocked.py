"""The Monarch layout of Triton's kernels: both permutations folded into the order of the weights.

Intermediate a = k*q + v belongs to output block j = a mod J, as its column a div J (`reference`). Sorting the rows of
each input block by output block makes what an output block reads contiguous:

    t[j*K*c + k*c + i]  is the i-th v of input block k with (k*q + v) mod J = j

where c, the slots that one input block has in one output block, is rounded up to a multiple of 8. Padded rows of w1 and
columns of w2 are zero. `blocked_mlp` sorts the factors of the CUDA kernel of an MLP in the same way.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor
from torch.nn import functional as F

from .shapes import MonarchShape

DTYPES = (torch.bfloat16, torch.float16)

VECTOR = 8
"""Two-byte numbers in a 16-byte access."""


class Activation(IntEnum):
    """The function that is applied to product and bias; its number is that of the kernels."""

    NONE = 0
    GELU = 1  # the exact one, by erf


def activated(y: Tensor, act: int) -> Tensor:
    """Apply an `Activation`."""
    return F.gelu(y) if Activation(act) == Activation.GELU else y


@dataclass(frozen=True)
class BlockedMonarch:
    """A Monarch layer in the blocked layout, on one device.

    Args:
        w1: (K, J*c, p or more), dtype of the inputs: rows sorted by output block.
        w2: (J, s, K*c); in the first layer of Triton's MLP (J, groups*c', K*c), with rows sorted by the next layer's
            input block.
        bias: (J, rows of w2), float32, or None.
        p: columns of the input that a block reads.
        out_features: output columns; in the first layer of Triton's MLP those of the hidden features, padding included.
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
        """Slots that one input block has in one output block, padding included."""
        return self.w1.shape[1] // self.J


def lay_out(
    w1: Tensor, w2: Tensor, bias: Tensor | None, out_features: int, c: int, depth: int, dtype: torch.dtype
) -> BlockedMonarch:
    """Lay out a layer of any shape, with so many slots and columns of w1 (`sort_factors`).

    Raises:
        ValueError: the bias is not (out_features,).
    """
    shape = MonarchShape.of(w1, w2)
    if bias is not None:
        if bias.shape != (out_features,):
            raise ValueError(f"bias of shape {tuple(bias.shape)}: the layer has {out_features} outputs")
        padded = F.pad(bias.detach().float(), (0, shape.out_extended - out_features))
        bias = padded.view(shape.s, shape.J).t().contiguous()
    first, second = sort_factors(w1, w2, c, depth, dtype)
    return BlockedMonarch(first, second, bias, shape.p, out_features)


def sort_factors(w1: Tensor, w2: Tensor, c: int, depth: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sort the rows of w1 by the output block that reads them, and the columns of w2 alike, for any K, q, p, J and s.

    Args:
        c: slots that one input block has in one output block, at least q / J; those left over are zero.
        depth: columns of the sorted w1, at least p; those left over are zero.

    Returns:
        (K, J*c, depth) and (J, s, K*c), contiguous.
    """
    shape = MonarchShape.of(w1, w2)
    block = torch.arange(shape.K, device=w1.device).view(-1, 1)  # k of each row of w1
    row = torch.arange(shape.q, device=w1.device)  # v
    output_block = (block * shape.q + row) % shape.J  # j
    column = (block * shape.q + row) // shape.J
    slot = row // shape.J  # rows that belong to one j are J apart
    first = w1.new_zeros((shape.K, shape.J * c, depth), dtype=dtype)
    first[block, output_block * c + slot, : shape.p] = w1.detach().to(dtype)
    second = w2.new_zeros((shape.J, shape.K * c, shape.s), dtype=dtype)
    second[output_block, block * c + slot] = w2.detach().to(dtype).transpose(1, 2)[output_block, column]
    return first, second.transpose(1, 2).contiguous()


def blocked_reference(x: Tensor, layer: BlockedMonarch, act: int, residual: Tensor | None) -> Tensor:
    """Compute act(M x + bias) + residual from the packed tensors in plain PyTorch, as the kernels do.

    It sums in float32 and rounds to the dtype of x where the kernels do: between the factors and at the end.

    Args:
        x: (M, in_features), with at most K*p features.
        act: an `Activation`.
        residual: (M, out_features) or None.
    """
    y = activated(blocked_product(x, layer).permute(1, 2, 0).flatten(1)[:, : layer.out_features], act)
    return (y if residual is None else y + residual.float()).to(x.dtype)


def blocked_product(x: Tensor, layer: BlockedMonarch) -> Tensor:
    """Return the product before activation, (J, M, rows of w2), float32: its rows are the outputs of each block."""
    rows, K, J = len(x), layer.K, layer.J
    wide = F.pad(x.float(), (0, K * layer.p - x.shape[1]))
    chunks = wide.view(rows, K, layer.p).transpose(0, 1)
    t = torch.bmm(chunks, layer.w1[:, :, : layer.p].float().transpose(1, 2)).to(x.dtype)  # (K, M, J*c)
    t = t.view(K, rows, J, layer.c).permute(2, 1, 0, 3).reshape(J, rows, K * layer.c)
    y = torch.bmm(t.float(), layer.w2.float().transpose(1, 2))
    return y if layer.bias is None else y + layer.bias.unsqueeze(1)
