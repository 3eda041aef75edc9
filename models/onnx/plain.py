"""Turns a loaded model into its form for export: structured layers as MatMul, Reshape and Transpose.

It starts from the serving form (`models/serving/prepare.py`). The permutations of a Monarch layer are folded into its
factors: the rows of the first factor are put in the order in which the second one reads them. Only a swap of the outer
axes K and J remains between the factors, which moves whole runs (arXiv 2512.20861). Inside an MLP the interleaving of
fc1's outputs and the cutting of fc2's input become one swap as well: the columns of fc2's first factor are put in the
order in which fc1 gives them.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...kernels.blocked import sort_factors
from ...kernels.packing import PackedMonarch
from ..layers.blockdiag import BlockdiagLinear, shuffled
from ..serving.prepare import PackedLinear, PackedMlp, prepare_for_inference


class PlainMonarch(nn.Module):
    """A Monarch layer as two batched products with three transpositions: (..., in_features) -> (..., out_features).

    Buffers `w1` (K, p, J*rank) and `w2` (J, K*rank, s): sorted factors, to be multiplied from the right; `bias`
    (J, 1, s) or None.
    """

    w1: Tensor
    w2: Tensor
    bias: Tensor | None

    def __init__(self, layer: PackedMonarch) -> None:
        super().__init__()
        shape, bias = layer.shape, layer.bias
        self.K, self.p, self.J, self.s, self.out_features = shape.K, shape.p, shape.J, shape.s, layer.out_features
        if bias is not None:
            # Output u*J + j is row u of block j.
            bias = F.pad(bias, (0, shape.out_extended - layer.out_features)).view(shape.s, shape.J).t().unsqueeze(1)
        # Pairs of blocks that share fewer elements than others are filled up with zeros.
        sorted1, sorted2 = sort_factors(layer.w1, layer.factor2, -(-shape.q // shape.J), shape.p, layer.dtype)
        self.register_buffer("w1", sorted1.transpose(1, 2).contiguous())
        self.register_buffer("w2", sorted2.transpose(1, 2).contiguous())
        self.register_buffer("bias", None if bias is None else bias.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        return self.interleaved(self.product(self.chunks(x)), x)

    def chunks(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (K, M, p)."""
        return _padded(x, self.K * self.p).reshape(-1, self.K, self.p).transpose(0, 1)

    def product(self, chunks: Tensor) -> Tensor:
        """(K, M, p) -> (J, M, s), bias included: output u*J + j is at [j, :, u]."""
        t = (chunks @ self.w1).reshape(self.K, -1, self.J, self.w1.shape[2] // self.J)
        y = t.transpose(0, 2).reshape(self.J, -1, self.w2.shape[1]) @ self.w2
        return y if self.bias is None else y + self.bias

    def interleaved(self, y: Tensor, like: Tensor) -> Tensor:
        """(J, M, s) -> (..., out_features), the axes before as those of the layer's input."""
        rows = y.permute(1, 2, 0).reshape(-1, *like.shape[1:-1], self.s * self.J)
        return rows[..., : self.out_features]


class PlainMonarchMlp(nn.Module):
    """fc2(GELU(fc1(x))) of two Monarch layers with one transposition between them, where `takes` allows it."""

    def __init__(self, fc1: PackedMonarch, fc2: PackedMonarch) -> None:
        super().__init__()
        self.fc1, self.fc2 = PlainMonarch(fc1), PlainMonarch(fc2)
        # A chunk of fc2's input holds hidden units (u, j), u outermost; fc1 gives them as (j, u).
        w1 = self.fc2.w1.unflatten(1, (-1, self.fc1.J)).transpose(1, 2).flatten(1, 2)
        self.fc2.register_buffer("w1", w1.contiguous())

    @staticmethod
    def takes(fc1: PackedMonarch, fc2: PackedMonarch) -> bool:
        """Whether nothing is padded in between, and each chunk of fc2's input has as many outputs of each block."""
        first, second = fc1.shape, fc2.shape
        return fc1.out_features == first.out_extended == second.in_extended and first.s % second.K == 0

    def forward(self, x: Tensor) -> Tensor:
        fc1, fc2 = self.fc1, self.fc2
        hidden = F.gelu(fc1.product(fc1.chunks(x)))  # (J, M, s)
        hidden = hidden.reshape(fc1.J, -1, fc2.K, fc1.s // fc2.K)
        y = fc2.product(hidden.transpose(0, 2).reshape(fc2.K, -1, fc2.p))
        return fc2.interleaved(y, x)


class PlainBlockdiag(nn.Module):
    """A block-diagonal layer as one batched product, its shuffle folded where N divides a block's width.

    Buffers `weight` (N, p, s), `bias` (N, 1, s) or None.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: BlockdiagLinear) -> None:
        super().__init__()
        weight: Tensor = layer.weight.detach().transpose(1, 2)
        bias: Tensor | None = layer.bias
        self.nblocks, self.p, self.s = weight.shape
        self.out_features = layer.out_features
        self.shuffle, self.folded = layer.shuffle, layer.shuffle and self.p % self.nblocks == 0
        if self.folded:
            # Element c*N + g of the shuffled input is g*p + c of the input: block b reads the b-th part of each group.
            weight = weight.unflatten(1, (-1, self.nblocks)).transpose(1, 2).flatten(1, 2)
        if bias is not None:
            bias = F.pad(bias, (0, self.nblocks * self.s - self.out_features)).view(self.nblocks, 1, self.s)
        self.register_buffer("weight", weight.contiguous())
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self._blocks(_padded(x, self.nblocks * self.p)) @ self.weight
        if self.bias is not None:
            y = y + self.bias
        rows = y.transpose(0, 1).reshape(-1, *x.shape[1:-1], self.nblocks * self.s)
        return rows[..., : self.out_features]

    def _blocks(self, x: Tensor) -> Tensor:
        """The input of each block, (N, M, p)."""
        if self.folded:
            groups = x.reshape(-1, self.nblocks, self.nblocks, self.p // self.nblocks)  # (M, g, b, c)
            return groups.permute(2, 0, 1, 3).reshape(self.nblocks, -1, self.p)
        wide = shuffled(x, self.nblocks) if self.shuffle else x
        return wide.reshape(-1, self.nblocks, self.p).transpose(0, 1)


class Exported(nn.Module):
    """A model of any dtype with float32 input and output: images (B, 3, H, W) -> logits (B, num_classes)."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.model(images.to(self.dtype))).float()


def plain_form(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Turn `model`, in place, into the form for export: plain operations, with float32 input and output.

    Args:
        model: as `create_model` or `load_bundle` gives it.
        dtype: dtype of weights and activations, except for performer features; bfloat16 only rounds the weights.
    """
    model = prepare_for_inference(model, dtype=dtype)
    _replace(model)
    if dtype is torch.bfloat16:
        model, dtype = model.float(), torch.float32
    return Exported(model, dtype).eval()


def _padded(x: Tensor, width: int) -> Tensor:
    """Pad the last axis with zeros up to `width`; a tensor of that width adds no operation to the graph."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def _replace(parent: nn.Module) -> None:
    for name, child in list(parent.named_children()):
        plain = _plain(child)
        if plain is None:
            _replace(child)
        else:
            setattr(parent, name, plain)


def _plain(child: nn.Module) -> nn.Module | None:
    """The plain form of a packed layer or MLP; None for other modules."""
    if isinstance(child, PackedMlp):
        layers = child.fc1.packed(), child.fc2.packed()
        if PlainMonarchMlp.takes(*layers):
            return PlainMonarchMlp(*layers)
        return nn.Sequential(PlainMonarch(layers[0]), nn.GELU(), PlainMonarch(layers[1]))
    if isinstance(child, PackedLinear):
        return PlainMonarch(child.packed())
    if isinstance(child, BlockdiagLinear):
        return PlainBlockdiag(child)
    return None
