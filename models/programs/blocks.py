"""Operators of parts that several families of models have: linear layers, norms, attention, MLPs."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...kernels.chain_ir import BlockDiagonal, Dense, LayerNorm, Linear
from ...kernels.cpu.factors import block_diagonal, convolution, dense, monarch
from ...kernels.cpu.program import Convolution, Factor
from ...kernels.cpu.row_operators import Floats, Norm, RmsNorm
from ..architectures.no_classifier import NoClassifier
from ..architectures.timm_models import type_name
from ..serving.fused.chains import NotFusable, as_norm

LAYER_NORMS = ("timm.layers.norm.LayerNorm2d",)
RMS_NORMS = ("timm.layers.norm.RmsNorm", "timm.layers.norm.RmsNorm2d", "torch.nn.modules.normalization.RMSNorm")
"""Norms of channels beside torch's LayerNorm."""


def linear_of(layer: Linear, name: str, **options: bool) -> list[Factor]:
    """The factors of a layer."""
    bias = None if layer.bias is None else array(layer.bias)
    if isinstance(layer, Dense):
        return [dense(array(layer.weight), bias, name=name, **options)]
    if isinstance(layer, BlockDiagonal):
        return [block_diagonal(array(layer.weight), layer.inputs.cpu().numpy(), bias, name=name, **options)]
    return monarch(array(layer.w1), array(layer.w2), bias, layer.out_features, name=name, **options)


def norm_of(part: nn.Module | LayerNorm) -> Norm:
    """The operator of a norm of each token's or pixel's channels: a LayerNorm or an RMSNorm.

    Raises:
        NotFusable: it is another norm.
    """
    if not isinstance(part, nn.Module):
        return Norm(array(part.weight), array(part.bias), part.eps)
    weight: Tensor | None = getattr(part, "weight", None)
    if type_name(part) in RMS_NORMS and weight is not None:
        return RmsNorm(array(weight), np.zeros(len(weight), np.float32), float(getattr(part, "eps", 0)))
    if type_name(part) in LAYER_NORMS and isinstance(part, nn.LayerNorm):
        return Norm(array(part.weight), array(part.bias), part.eps)
    norm = as_norm(part)
    return Norm(array(norm.weight), array(norm.bias), norm.eps)


def norm_if(part: nn.Module | None) -> Norm | None:
    """The operator of a norm; None where there is none."""
    return None if part is None or isinstance(part, nn.Identity) else norm_of(part)


def patch_of(conv: nn.Module) -> int:
    """Return the side of a convolution's patches, px.

    Raises:
        NotFusable: they are no squares side by side.
    """
    if isinstance(conv, nn.Conv2d):
        side = conv.kernel_size[0]
        if (conv.kernel_size, conv.stride, conv.padding, conv.groups) == ((side, side), (side, side), (0, 0), 1):
            return side
    raise NotFusable("its patch embedding is no convolution of square patches side by side")


def convolution_of(conv: Any, name: str, side: int, weight: Floats | None = None, **options: Any) -> Convolution:
    """A convolution of a grid of this side.

    Args:
        weight: in place of its own, whose channels are filled up with zeros.
        options: of the factor.

    Raises:
        NotFusable: it is no plain convolution of squares.
    """
    if type(conv) is not nn.Conv2d:
        raise NotFusable(f"{name} is a {type(conv).__name__}")
    for field in ("kernel_size", "stride", "dilation", "padding"):
        if isinstance(getattr(conv, field), str) or len(set(getattr(conv, field))) > 1:
            raise NotFusable(f"{name} has another {field} down than across")
    if conv.padding_mode != "zeros":
        raise NotFusable(f"{name} pads with {conv.padding_mode}")
    geometry = {field: getattr(conv, field)[0] for field in ("stride", "dilation", "padding")}
    weight = array(conv.weight) if weight is None else weight
    bias = np.pad(bias_of(conv), (0, len(weight) - len(conv.weight)))
    return convolution(weight, bias, side, conv.groups, **geometry, name=name, **options)


def dense_of(part: nn.Module) -> Factor:
    """The factor of a classifier; one that changes nothing where there is none.

    Raises:
        NotFusable: it is no plain linear layer.
    """
    if isinstance(part, NoClassifier):
        return dense(np.eye(part.width, dtype=np.float32), None, name="head")
    if type(part) is not nn.Linear:
        raise NotFusable(f"its head is a {type(part).__name__}")
    return dense(array(part.weight), None if part.bias is None else array(part.bias), name="head")


def bias_of(layer: nn.Conv2d | nn.Linear) -> Floats:
    """Return the bias of a layer, zeros where it has none."""
    return np.zeros(len(layer.weight), np.float32) if layer.bias is None else array(layer.bias)


def array(tensor: Tensor) -> Floats:
    """Return a float32 copy of a tensor."""
    return tensor.detach().to(torch.float32).cpu().numpy().copy()
