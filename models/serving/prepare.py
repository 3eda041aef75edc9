"""Turns a loaded model into its serving form: structured layers packed, MLPs fused, BatchNorms folded, one dtype.

The result computes the same function (to rounding) but no longer has the checkpoint's keys: it is for running, not
for saving.
"""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ...kernels.ops import decide, packed_linear, packed_mlp
from ...kernels.packing import PackedMonarch, pack_monarch
from ..architectures.plain_mlp import plain_mlp
from ..architectures.vitae.reduction import PerformerAttention
from ..layers.blockdiag import BlockdiagLinear
from ..layers.butterfly import gathered_product
from ..layers.int8 import Expanded, hold_int8
from ..layers.pixelfly import PixelflyLinear
from ..layers.structured import StructuredLinear


class PackedLinear(nn.Module):
    """Serving form of a Monarch layer of several blocks: (..., in_features) -> (..., out_features).

    Its packed factors are buffers, so that memory accounting sees them.
    """

    w1: Tensor
    w2: Tensor

    def __init__(self, layer: StructuredLinear, dtype: torch.dtype) -> None:
        super().__init__()
        factors = layer.monarch_factors()
        assert factors is not None
        packed = pack_monarch(
            *factors, layer.bias, in_features=layer.in_features, out_features=layer.out_features, dtype=dtype
        )
        self.register_buffer("w1", packed.w1)
        self.register_buffer("w2", packed.w2)
        self._shape, self._in, self._out = packed.shape, packed.in_features, packed.out_features

    def packed(self) -> PackedMonarch:
        """The layer as the kernels take it, on the device of its buffers."""
        return PackedMonarch(self.w1, self.w2, self._shape, self._in, self._out)

    def forward(self, x: Tensor) -> Tensor:
        return packed_linear(x, self.packed())


class PackedMlp(nn.Module):
    """Serving form of an MLP whose two layers are Monarch of several blocks: fc2(GELU(fc1(x))) in one call."""

    def __init__(self, fc1: StructuredLinear, fc2: StructuredLinear, dtype: torch.dtype) -> None:
        super().__init__()
        self.fc1 = PackedLinear(fc1, dtype)
        self.fc2 = PackedLinear(fc2, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return packed_mlp(x, self.fc1.packed(), self.fc2.packed())


class PackedLowRank(nn.Module):
    """Serving form of a low-rank layer, which is a Monarch layer of one block: two linear layers.

    They need none of the Monarch kernels' permutations, and take 0.4 to 1.0 of their time on a CPU.
    """

    thin1: Tensor
    thin2: Tensor
    bias: Tensor | None

    def __init__(self, layer: StructuredLinear, dtype: torch.dtype) -> None:
        super().__init__()
        factors = layer.monarch_factors()
        assert factors is not None
        self.register_buffer("thin1", factors[0][0].to(dtype))
        self.register_buffer("thin2", factors[1][0].to(dtype))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.thin1), self.thin2, self.bias)


class PackedPixelfly(nn.Module):
    """Serving form of PixelflyLinear: (..., in_features) -> (..., out_features).

    The kept blocks are arranged as the batched product takes them. The gate is one more row of the first thin factor,
    the bias one more column of the second, so that one product adds the low-rank part in place.
    """

    columns: Tensor
    sparse: Tensor
    thin1: Tensor
    thin2: Tensor
    gate_bias: Tensor | None

    def __init__(self, layer: PixelflyLinear, dtype: torch.dtype) -> None:
        super().__init__()
        blocks, gate, low_rank = layer.sparse.weight, layer.gate, layer.low_rank
        first = blocks.new_zeros(0, layer.in_features) if low_rank is None else low_rank.lr_weight1
        second = blocks.new_zeros(layer.out_features, 0) if low_rank is None else low_rank.lr_weight2
        gathering = layer.sparse.gathering(blocks.device)
        half = 0.5 if gate is None and low_rank is not None else 1.0
        bias = layer.bias if layer.bias is not None else second.new_zeros(layer.out_features)
        padding = layer.sparse.shape.rows * layer.block_size - layer.out_features
        thin2 = F.pad(torch.cat([half * second, bias[:, None]], 1), (0, 0, 0, padding))
        self.register_buffer("columns", gathering.columns)
        self.register_buffer("sparse", (half * gathering.weight(blocks)).to(dtype))
        self.register_buffer("thin1", (first if gate is None else torch.cat([first, gate.weight])).to(dtype))
        self.register_buffer("thin2", thin2.T.to(dtype).contiguous())
        self.register_buffer("gate_bias", None if gate is None else gate.bias.to(dtype))
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self._padding = layer.sparse.shape.columns * layer.block_size - layer.in_features

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        thin = F.linear(rows, self.thin1)
        if self.gate_bias is None:
            y = self._sparse(rows)
        else:
            share = torch.sigmoid(thin[:, -1:] + self.gate_bias)
            thin = share * thin[:, :-1]
            # Scale the narrower side: a pass over all tokens costs as much as the product.
            narrow = self.in_features <= self.out_features
            y = self._sparse((1 - share) * rows) if narrow else self._sparse(rows).mul_(1 - share)
        y.addmm_(torch.cat([thin, thin.new_ones(thin.shape[0], 1)], 1), self.thin2)
        return y[:, : self.out_features].reshape(*x.shape[:-1], self.out_features)

    def _sparse(self, rows: Tensor) -> Tensor:
        return gathered_product(F.pad(rows, (0, self._padding)), self.columns, self.sparse)


def prepare_for_inference(
    model: nn.Module, *, dtype: torch.dtype = torch.float32, int8_layers: Iterable[str] = ()
) -> nn.Module:
    """Make `model` its own serving form, in place, and return it.

    Args:
        model: as `create_model` or `load_bundle` gives it.
        dtype: dtype of weights and activations. Performer features stay float32: they overflow in anything less.
        int8_layers: names of the layers whose weights stay int8 in memory, as the bundle stores them. A Pixelfly
            layer's weights do not stay int8: its serving form mixes their rows.

    Returns:
        The model in eval mode, without gradients, taking normalised images (B, 3, H, W) of `dtype`.
    """
    model = model.eval().requires_grad_(False)
    fold_batch_norms(model)
    layers = tuple(int8_layers)
    _pack(model, torch.float32 if layers else dtype)  # rounded weights would become other int8 values
    _hold_int8(model, layers, dtype)
    _join_biases(model)
    features = {m: m.w.detach().float() for m in model.modules() if isinstance(m, PerformerAttention)}
    scales = {m: m.scale for m in model.modules() if isinstance(m, Expanded)}
    model = model.to(dtype)
    for performer, w in features.items():
        performer.w = nn.Parameter(w, requires_grad=False)
    for expanded, scale in scales.items():
        expanded.scale = scale
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)
    return model


def _join_biases(model: nn.Module) -> None:
    """Let timm's attention with a `q_bias` add it within a dense layer's product again, a pass less."""
    module: Any
    for module in model.modules():
        if getattr(module, "qkv_bias_separate", False) and type(module.qkv) is nn.Linear:
            module.qkv_bias_separate = False


def _hold_int8(model: nn.Module, layers: Iterable[str], dtype: torch.dtype) -> None:
    modules = dict(model.named_modules())
    for name in layers:
        module = modules.get(name)
        if isinstance(module, nn.Linear | nn.Conv2d | BlockdiagLinear):
            hold_int8(module, ("weight",), dtype)
        elif isinstance(module, PackedLowRank):
            hold_int8(module, ("thin1", "thin2"), dtype)
        elif isinstance(module, PackedLinear):
            inner = module.packed().shape.r
            hold_int8(module, ("w1",), dtype)
            hold_int8(module, ("w2",), dtype, columns=inner)  # the last column is the bias


def fold_batch_norms(model: nn.Module) -> None:
    """Fold every BatchNorm2d that follows a convolution in a Sequential into that convolution.

    Only torch's own classes are folded: timm's subclasses standardise weights, or end a norm with an activation.
    """
    for module in model.modules():
        if not isinstance(module, nn.Sequential):
            continue
        for i in range(len(module) - 1):
            conv, norm = module[i], module[i + 1]
            if type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d:
                module[i] = fuse_conv_bn_eval(conv, norm)
                module[i + 1] = nn.Identity()


def kernel_decision(device: torch.device) -> str:
    """The kernel that a prepared model's Monarch layers run on a device, and why, in words."""
    return decide(device, differentiable=False)


def _pack(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace MLPs of two Monarch layers, then the other structured layers."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if _is_monarch_mlp(child):
                fc1, fc2 = cast(StructuredLinear, child.fc1), cast(StructuredLinear, child.fc2)
                setattr(parent, name, PackedMlp(fc1, fc2, dtype))
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, PixelflyLinear):
                setattr(parent, name, PackedPixelfly(child, dtype))
            elif _blocks(child) > 1:
                setattr(parent, name, PackedLinear(cast(StructuredLinear, child), dtype))
            elif _blocks(child) == 1:
                setattr(parent, name, PackedLowRank(cast(StructuredLinear, child), dtype))


def _blocks(module: nn.Module | None) -> int:
    """Number of blocks of a Monarch or low-rank layer; 0 for any other module."""
    factors = module.monarch_factors() if isinstance(module, StructuredLinear) else None
    return 0 if factors is None else len(factors[0])


def _is_monarch_mlp(module: nn.Module) -> bool:
    """Whether a module is fc1 -> exact GELU -> fc2 and nothing else, both layers Monarch of several blocks."""
    fc1, act, fc2 = plain_mlp(module) or (None, None, None)
    return _blocks(fc1) > 1 and _blocks(fc2) > 1 and isinstance(act, nn.GELU) and act.approximate == "none"
