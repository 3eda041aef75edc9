"""Makes the program of a model of stages with fewer, wider tokens in each: Swin transformers and ConvNeXt."""

from dataclasses import replace
from math import e, log2
from typing import Any

import numpy as np
from torch import nn

from ....kernels.cpu.factors import dense
from ....kernels.cpu.instruction_sets import LANES
from ....kernels.cpu.program import BiasedAttention, Depthwise, Embed, Grid, Head, Operator, Pixels, Program, Pyramid
from ....kernels.cpu.row_operators import Floats, InnerNorm, Join, NewStream, Places, Renew
from ...architectures.timm_models import type_name
from ...serving.fused.chains import NotFusable, as_linear, check_idle, parts_of
from ..biases import MASKED
from ..blocks import array, bias_of, convolution_of, dense_of, linear_of, norm_if, norm_of, patch_of
from ..heads import filled_up, in_windows, whole_vectors
from ..transformer import activation_of, block_operators, mlp_operators

_SWIN_V2 = "timm.models.swin_transformer_v2.SwinTransformerV2"


def swin_program(model: Any, size: int) -> Program:
    """Make the program of timm's Swin transformer, version 1 or 2, for images of this side, px.

    Raises:
        NotFusable: the kernels have no operator for a part, or windows do not divide a grid; names it.
    """
    parts_of(model, "patch_embed", "layers", "norm", "head")
    embed, side = patches_of(model.patch_embed.proj, size)
    operators: list[Operator] = [Renew(norm_of(model.patch_embed.norm))]
    for place, stage in enumerate(model.layers):
        if not isinstance(stage.downsample, nn.Identity):
            merging, name = stage.downsample, f"layers.{place}.downsample.reduction"
            if side % 2:
                raise NotFusable(f"a grid of {side} tokens on a side is filled up before they are merged")
            rows, side = _neighbours(side, down_first=True)
            reduction = linear_of(as_linear(merging.reduction), name)
            norm = InnerNorm(norm_of(merging.norm))
            between: list[Operator] = [*reduction, norm] if type_name(model) == _SWIN_V2 else [norm, *reduction]
            operators += [Join(rows), *between, NewStream()]
        for i, block in enumerate(stage.blocks):
            attended, mlp = block_operators(block, f"layers.{place}.blocks.{i}")
            operators += [_windowed(operator, block, side) for operator in attended]
            operators += mlp
    return Program(embed, [*operators, Renew(norm_of(model.norm))], _head(model.head))


def convnext_program(model: Any, size: int) -> Program:
    """Make the program of timm's ConvNeXt for images of this side, px.

    Raises:
        NotFusable: the kernels have no operator for a part; names it.
    """
    parts_of(model, "stem", "stages", "norm_pre", "head")
    embed, operators, side = _stem(model.stem, size)
    for place, stage in enumerate(model.stages):
        if not isinstance(stage.downsample, nn.Identity):
            norm, conv = stage.downsample
            rows, side = _neighbours(side, down_first=False)
            if patch_of(conv) != 2:
                raise NotFusable("its downsampling is no convolution of squares of four")
            weight = _in_vectors(_in_vectors(array(conv.weight).transpose(0, 2, 3, 1), 0), 3)
            weight, bias = weight.reshape(len(weight), -1), _in_vectors(bias_of(conv))
            joining = dense(weight, bias, name=f"stages.{place}.downsample.1")
            operators += [Renew(norm_of(norm)), Join(rows), joining, NewStream()]
        for i, block in enumerate(stage.blocks):
            operators += _convnext_block(block, f"stages.{place}.blocks.{i}")
    if (width := len(model.stages[-1].blocks[-1].conv_dw.weight)) % LANES:
        raise NotFusable(f"its last stage has {width} channels, no multiple of {LANES}")
    last = norm_if(model.norm_pre)
    return Program(embed, [*operators, *([] if last is None else [Renew(last)])], _head(model.head))


def _stem(stem: Any, size: int) -> tuple[Embed | Pixels, list[Operator], int]:
    """The first operators, and the tokens on a side: patches side by side, or two convolutions that overlap."""
    *convs, norm = stem
    if len(convs) == 1:
        embed, side = patches_of(convs[0], size)
        embed = Embed(_in_vectors(embed.weight), _in_vectors(embed.bias), _in_vectors(embed.start, 1), size)
        return embed, [Renew(norm_of(norm))], side
    first, *between, second = convs
    if between and activation_of(between[0]) != ("gelu", 1):
        raise NotFusable(f"its stem has {type(between[0]).__name__}")
    before = convolution_of(first, "stem.0", size, _in_vectors(array(first.weight)), gelu=bool(between))
    weight = _in_vectors(_in_vectors(array(second.weight)), 1)
    behind = convolution_of(second, f"stem.{1 + len(between)}", before.across, weight)
    return Pixels(size), [Pyramid([before]), Grid(), Pyramid([behind]), Renew(norm_of(norm))], behind.across


def patches_of(conv: nn.Conv2d, size: int) -> tuple[Embed, int]:
    """Patches without positions, and their number on a side."""
    side = size // patch_of(conv)
    return Embed(array(conv.weight), bias_of(conv), np.zeros((side**2, len(conv.weight)), np.float32), size), side


def _neighbours(side: int, *, down_first: bool) -> tuple[Places, int]:
    """The tokens of each whole square of four, and the number of squares on a side."""
    half = side // 2
    squares = np.arange(side**2).reshape(side, side)[: 2 * half, : 2 * half].reshape(half, 2, half, 2)
    order = (0, 2, 3, 1) if down_first else (0, 2, 1, 3)
    return squares.transpose(order).reshape(-1, 4), half


def _windowed(operator: Operator, block: Any, side: int) -> Operator:
    """An attention of all tokens as one within the windows of a block, on a grid of this side."""
    if not isinstance(operator, BiasedAttention):
        return operator
    (height, width), shift = block.window_size, block.shift_size
    if height != width:
        raise NotFusable(f"windows of {height} by {width} tokens")
    windowed = replace(in_windows(operator, side, height, shift), table=operator.table, index=operator.index[None])
    if not any(shift):
        return windowed
    masks, kinds = np.unique(block.get_attn_mask().numpy() != 0, axis=0, return_inverse=True)
    table = np.pad(operator.table, ((0, 0), (0, 1)), constant_values=MASKED * log2(e))
    index = np.where(masks, table.shape[1] - 1, windowed.index)
    return replace(windowed, kinds=kinds.reshape(-1), table=table, index=index)


def _convnext_block(block: Any, name: str) -> list[Operator]:
    parts = parts_of(block, "conv_dw", "norm", "mlp", "shortcut", "drop_path")
    for part in ("shortcut", "drop_path"):
        check_idle(part, parts[part])
    conv = block.conv_dw
    kernel, geometry = conv.kernel_size[0], (conv.kernel_size, conv.padding, conv.stride, conv.dilation)
    plain = geometry == ((kernel, kernel), (kernel // 2, kernel // 2), (1, 1), (1, 1))
    if type(conv) is not nn.Conv2d or not plain or conv.groups != len(conv.weight):
        raise NotFusable("its depthwise convolution has strides, dilations or other sides")
    gamma = None if block.gamma is None else block.gamma.detach()
    first = Depthwise(_in_vectors(array(conv.weight[:, 0])), _in_vectors(bias_of(conv)))
    mlp = filled_up(mlp_operators(block.mlp, gamma, f"{name}.mlp"), len(conv.weight))
    return [first, InnerNorm(norm_of(block.norm)), *mlp]


def _in_vectors(values: Floats, axis: int = 0) -> Floats:
    """Values whose channels, along an axis, are filled up to whole vectors with zeros."""
    count = values.shape[axis]
    return np.pad(values, [(0, whole_vectors(count) - count if i == axis else 0) for i in range(values.ndim)])


def _head(head: Any) -> Head:
    """A classifier of the mean of all tokens, with a norm of it or without."""
    parts = parts_of(head, "global_pool", "norm", "flatten", "pre_logits", "drop", "fc")
    check_idle("head.pre_logits", parts["pre_logits"])
    if getattr(head.global_pool, "pool_type", None) != "avg":
        raise NotFusable(f"its head pools by {getattr(head.global_pool, 'pool_type', None)!r}")
    return Head(norm_if(parts["norm"]), dense_of(head.fc), 0)


HIERARCHICAL = {
    "timm.models.swin_transformer.SwinTransformer": swin_program,
    _SWIN_V2: swin_program,
    "timm.models.convnext.ConvNeXt": convnext_program,
}
"""Programs by the class of the model."""
