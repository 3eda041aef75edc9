"""Packs the factors of a Monarch layer for inference, once, when the model is loaded."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .shapes import MonarchShape


@dataclass(frozen=True)
class PackedMonarch:
    """A Monarch layer ready for inference: contiguous factors of one dtype, the bias inside the second.

    It is derived from the checkpoint's tensors and never stored instead of them.

    Args:
        w1: (K, q, p).
        w2: (J, s, r), or (J, s, r + 1) with the bias as last column, which is multiplied by ones: that adds no time to
            the product and saves a pass over its result.
        shape: shape of the factors, without that column.
        in_features, out_features: widths of the layer.
    """

    w1: Tensor
    w2: Tensor
    shape: MonarchShape
    in_features: int
    out_features: int

    @property
    def dtype(self) -> torch.dtype:
        return self.w1.dtype

    @property
    def has_bias(self) -> bool:
        return self.w2.shape[2] > self.shape.r

    @property
    def factor2(self) -> Tensor:
        """The second factor alone, (J, s, r); a view."""
        return self.w2[:, :, : self.shape.r]

    @property
    def bias(self) -> Tensor | None:
        """(out_features,), or None."""
        return self.w2[:, :, -1].t().flatten()[: self.out_features] if self.has_bias else None


def pack_monarch(
    w1: Tensor,
    w2: Tensor,
    bias: Tensor | None = None,
    *,
    in_features: int | None = None,
    out_features: int | None = None,
    dtype: torch.dtype | None = None,
) -> PackedMonarch:
    """Pack a layer's parameters for inference; shares memory with them where dtype and layout allow.

    Args:
        w1, w2: factors (K, q, p) and (J, s, r).
        bias: (out_features,) or None.
        in_features, out_features: widths of the layer; K*p and J*s if None.
        dtype: dtype of the packed tensors; that of w1 if None.

    Raises:
        ValueError: the shapes do not fit each other.
    """
    shape = MonarchShape.of(w1, w2)
    width = shape.in_extended if in_features is None else in_features
    out = shape.check(width, out_features)
    if bias is not None and bias.shape != (out,):
        raise ValueError(f"bias of shape {tuple(bias.shape)}: the layer has {out} outputs")

    def ready(tensor: Tensor) -> Tensor:
        return tensor.detach().to(dtype or w1.dtype).contiguous()

    second = ready(w2)
    if bias is not None:
        # Output u*J + j is row u of block j: the same interleaving as the product's.
        rows = F.pad(ready(bias), (0, shape.out_extended - out)).view(shape.s, shape.J)
        second = torch.cat([second, rows.t().unsqueeze(2)], dim=2)
    return PackedMonarch(ready(w1), second, shape, width, out)
