"""Packs the factors of a Monarch layer once, at load, into what the inference paths want."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .shapes import MonarchShape


@dataclass(frozen=True)
class PackedMonarch:
    """A Monarch layer ready for inference: contiguous factors of one dtype, bias as a column.

    Plain tensors that are derived from the checkpoint's, never stored instead of them.
    """

    w1: Tensor  # (K, q, p)
    w2: Tensor  # (J, s, r)
    bias: Tensor | None  # (out_features, 1)
    shape: MonarchShape
    in_features: int
    out_features: int

    @property
    def dtype(self) -> torch.dtype:
        return self.w1.dtype


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
        in_features, out_features: of the layer; K*p and J*s when None.
        dtype: of the packed tensors; that of w1 when None.

    Raises:
        ValueError: shapes that do not fit each other.
    """
    shape = MonarchShape.of(w1, w2)
    width = shape.in_extended if in_features is None else in_features
    out = shape.check(width, out_features)
    if bias is not None and bias.shape != (out,):
        raise ValueError(f"bias of shape {tuple(bias.shape)}: the layer has {out} outputs")

    def ready(tensor: Tensor) -> Tensor:
        return tensor.detach().to(dtype or w1.dtype).contiguous()

    column = None if bias is None else ready(bias).unsqueeze(1)
    return PackedMonarch(ready(w1), ready(w2), column, shape, width, out)
