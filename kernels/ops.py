"""The public Monarch operations: each checks its arguments, chooses an implementation once, and runs it."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .feature_major import feature_major_linear, feature_major_mlp
from .packing import PackedMonarch, pack_monarch
from .reference import monarch_batched
from .shapes import MonarchShape


def _feature_major(device: torch.device, *, differentiable: bool) -> bool:
    return device.type == "cpu" and not differentiable


def decide(device: torch.device, *, differentiable: bool) -> str:
    """Say how tensors on `device` are multiplied, and why, in a few words.

    Args:
        device: where input and factors are.
        differentiable: gradients are wanted.
    """
    if _feature_major(device, differentiable=differentiable):
        return "feature_major (CPU inference: permutations are strides)"
    if differentiable:
        return "batched (gradients wanted)"
    return f"batched (plain PyTorch on {device.type}: a fused model chooses for itself)"


def monarch_linear(
    x: Tensor, w1: Tensor, w2: Tensor, bias: Tensor | None = None, *, out_features: int | None = None
) -> Tensor:
    """y = M x + bias, M the Monarch matrix of factors w1 and w2 (arXiv 2204.00595, section 3.1).

    Args:
        x: (..., n) with n <= K*p; narrower inputs are zero-padded at the end, as fly does. Any strides.
        w1, w2: (K, q, p) and (J, s, r) with K*q = J*r; K != J and any q are allowed (low rank is K = J = 1).
        bias: (out_features,) or None.
        out_features: outputs kept, the first of the J*s; all of them when None.

    Returns:
        (..., out_features), dtype and device of x. Differentiable where gradients are wanted.

    Raises:
        ValueError: shapes that do not fit; the message names them.
    """
    shape = MonarchShape.of(w1, w2)
    out = shape.check(x.shape[-1], out_features)
    if not _feature_major(x.device, differentiable=_wants_gradients(x, w1, w2, bias)):
        return monarch_batched(x, w1, w2, bias, out)
    packed = pack_monarch(w1, w2, bias, in_features=x.shape[-1], out_features=out)
    return feature_major_linear(x.reshape(-1, x.shape[-1]), packed).reshape(*x.shape[:-1], out)


def packed_linear(x: Tensor, layer: PackedMonarch) -> Tensor:
    """`monarch_linear` with a packed layer, inference only: (..., in_features) -> (..., out_features)."""
    rows = _rows(x, layer)
    if _feature_major(x.device, differentiable=False):
        y = feature_major_linear(rows, layer)
    else:
        y = _batched(rows, layer)
    return y.reshape(*x.shape[:-1], layer.out_features)


def packed_mlp(x: Tensor, fc1: PackedMonarch, fc2: PackedMonarch) -> Tensor:
    """fc2(GELU(fc1(x))) with packed layers, exact erf GELU, inference only.

    Raises:
        ValueError: the outputs of fc1 are not the inputs of fc2, or x does not fit fc1.
    """
    if fc1.out_features != fc2.in_features:
        raise ValueError(f"fc1 gives {fc1.out_features} features, fc2 takes {fc2.in_features}")
    rows = _rows(x, fc1)
    if _feature_major(x.device, differentiable=False):
        y = feature_major_mlp(rows, fc1, fc2)
    else:
        y = _batched(F.gelu(_batched(rows, fc1)), fc2)
    return y.reshape(*x.shape[:-1], fc2.out_features)


def _wants_gradients(*tensors: Tensor | None) -> bool:
    """True when autograd would record an operation on these tensors."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _rows(x: Tensor, layer: PackedMonarch) -> Tensor:
    if x.shape[-1] != layer.in_features:
        raise ValueError(f"input of width {x.shape[-1]}: the layer takes {layer.in_features}")
    if x.dtype != layer.dtype:
        raise ValueError(f"input is {x.dtype}, the layer was packed as {layer.dtype}")
    return x.reshape(-1, layer.in_features)


def _batched(rows: Tensor, layer: PackedMonarch) -> Tensor:
    return monarch_batched(rows, layer.w1, layer.factor2, layer.bias, layer.out_features)
