"""Turns a loaded model into its serving form: Monarch layers packed, MLPs fused, BatchNorms folded, one dtype.

The result computes the same function (to rounding) but no longer has the checkpoint's keys: it is for running, not
for saving.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..kernels import PackedMonarch, decide, pack_monarch, packed_linear, packed_mlp
from .monarch import MonarchLinear
from .vitae.reduction import PerformerAttention


class PackedLayer(nn.Module):
    """A packed Monarch layer; its tensors are buffers, so that memory accounting sees them."""

    w1: Tensor
    w2: Tensor

    def __init__(self, layer: MonarchLinear, dtype: torch.dtype) -> None:
        super().__init__()
        packed = pack_monarch(
            layer.blkdiag1,
            layer.blkdiag2,
            layer.bias,
            in_features=layer.in_features,
            out_features=layer.out_features,
            dtype=dtype,
        )
        self.register_buffer("w1", packed.w1)
        self.register_buffer("w2", packed.w2)
        self._shape, self._in, self._out = packed.shape, packed.in_features, packed.out_features

    def packed(self) -> PackedMonarch:
        """The layer as the kernels take it, on whatever device the buffers are now."""
        return PackedMonarch(self.w1, self.w2, self._shape, self._in, self._out)


class PackedLinear(PackedLayer):
    """Serving form of MonarchLinear: (..., in_features) -> (..., out_features)."""

    def forward(self, x: Tensor) -> Tensor:
        return packed_linear(x, self.packed())


class PackedMlp(nn.Module):
    """Serving form of an MLP whose two layers are Monarch: fc2(GELU(fc1(x))) in one call."""

    def __init__(self, fc1: MonarchLinear, fc2: MonarchLinear, dtype: torch.dtype) -> None:
        super().__init__()
        self.fc1 = PackedLayer(fc1, dtype)
        self.fc2 = PackedLayer(fc2, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return packed_mlp(x, self.fc1.packed(), self.fc2.packed())


def prepare_for_inference(model: nn.Module, *, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Make `model` its own serving form, in place, and return it.

    Args:
        model: as `create_model` or `load_bundle` gives it.
        dtype: of weights and activations. Performer features stay float32: they overflow in anything less.

    Returns:
        The model in eval mode, without gradients, taking normalised images (B, 3, H, W) of `dtype`.
    """
    model = model.eval().requires_grad_(False)
    fold_batch_norms(model)
    _pack(model, dtype)
    features = {m: m.w.detach().float() for m in model.modules() if isinstance(m, PerformerAttention)}
    model = model.to(dtype)
    for performer, w in features.items():
        performer.w = nn.Parameter(w, requires_grad=False)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)
    return model


def fold_batch_norms(model: nn.Module) -> None:
    """Fold every BatchNorm2d that follows a convolution in a Sequential into that convolution."""
    for module in model.modules():
        if not isinstance(module, nn.Sequential):
            continue
        for i in range(len(module) - 1):
            conv, norm = module[i], module[i + 1]
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                module[i] = fuse_conv_bn_eval(conv, norm)
                module[i + 1] = nn.Identity()


def kernel_decision(device: torch.device) -> str:
    """What a prepared model's Monarch layers run on there, and why, in words."""
    return str(decide(device, differentiable=False))


def _pack(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace MLPs of two Monarch layers, then the Monarch layers that are left."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if _is_monarch_mlp(child):
                fc1, fc2 = cast(MonarchLinear, child.fc1), cast(MonarchLinear, child.fc2)
                setattr(parent, name, PackedMlp(fc1, fc2, dtype))
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, MonarchLinear):
                setattr(parent, name, PackedLinear(child, dtype))


def _is_monarch_mlp(module: nn.Module) -> bool:
    """True for fc1 -> exact GELU -> fc2 with both layers Monarch and nothing that acts between them."""
    children = dict(module.named_children())
    fc1, act, fc2 = (children.pop(name, None) for name in ("fc1", "act", "fc2"))
    return (
        isinstance(fc1, MonarchLinear)
        and isinstance(fc2, MonarchLinear)
        and isinstance(act, nn.GELU)
        and act.approximate == "none"
        and all(isinstance(other, nn.Identity | nn.Dropout) for other in children.values())
    )
