"""Makes the program of a ViTAE, version 1 or 2: reduction cells, whose convolutions read a grid, and normal cells."""

from collections.abc import Sequence
from dataclasses import replace
from math import e, log2
from typing import Any, cast

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ....kernels.cpu.program import (
    Attention,
    Branch,
    Convolution,
    Embed,
    Factor,
    Grid,
    Head,
    Operator,
    Performer,
    Pixels,
    Program,
    Pyramid,
)
from ....kernels.cpu.row_operators import AddValues, NewStream
from ...architectures.vitae.attention import MultiHeadAttention, WindowAttention
from ...architectures.vitae.merging import MergingCell
from ...architectures.vitae.normal import NormalCell
from ...architectures.vitae.reduction import (
    EmbeddingReduction,
    PerformerReduction,
    PyramidOnlyReduction,
    TransformerReduction,
)
from ...layers.narrow_attention import NarrowAttention
from ...serving.fused.chains import NotFusable, as_linear
from ..blocks import array, bias_of, convolution_of, dense_of, linear_of, norm_if, norm_of
from ..heads import around, head_dims, in_windows, normed_into

Reduction = PerformerReduction | PyramidOnlyReduction | TransformerReduction


def vitae_program(model: Any, size: int) -> Program:
    """Make the program of a ViTAE that takes images of this side, px.

    Raises:
        NotFusable: the kernels have no operator for a part; names it.
    """
    embed: Embed | Pixels = Pixels(size)
    operators, side, prefix = list[Operator](), size, int(getattr(model, "class_token", False))
    for place, stage in enumerate(model.layers):
        name, cell = f"layers.{place}", stage.RC
        if isinstance(cell, EmbeddingReduction):
            embed = _embed(cell, size)
            side = size // cell.PRM.proj.stride[0]
        elif isinstance(cell, Reduction):
            operators += [] if place == 0 else [Grid()]
            operators += _reduction(cell, f"{name}.RC", side)
            side = (
                next(operator for operator in reversed(operators) if isinstance(operator, Pyramid))
                .convolutions[0]
                .across
            )
        elif not isinstance(cell, nn.Identity):
            raise NotFusable(f"a reduction cell is a {type(cell).__name__}")
        for i, cell in enumerate(stage.NC):
            operators += _normal(cell, f"{name}.NC.{i}", side)
    norm = norm_if(getattr(model, "fc_norm", None))
    return Program(embed, operators, Head(norm, dense_of(model.head), mean_from=prefix))


def _embed(cell: EmbeddingReduction, size: int) -> Embed:
    if size != cell.img_size:
        raise NotFusable(f"it has positions for images of {cell.img_size} px, not {size}")
    conv, start = cell.PRM.proj, array(cell.pos_embed[0])
    start[:1] += array(cell.cls_token[0])
    return Embed(array(conv.weight), bias_of(conv), start, size)


def _reduction(cell: Reduction, name: str, side: int) -> list[Operator]:
    """The operators of a reduction cell, which reads a grid of this side."""
    pyramid = []
    for i, steps in enumerate(cell.PRM.convs):
        conv, gelu = cast(nn.Sequential, steps)
        if not isinstance(gelu, nn.GELU) or gelu.approximate != "none":
            raise NotFusable(f"{name}.PRM has an activation {gelu}, not the exact GELU")
        pyramid.append(convolution_of(conv, f"{name}.PRM.convs.{i}.0", side, gelu=True))
    if isinstance(cell, PyramidOnlyReduction):
        return [Pyramid(pyramid)]
    branch = Branch(_branch(cell.PCM, f"{name}.PCM", side))
    if isinstance(cell, TransformerReduction):
        return [Pyramid(pyramid), *token_transformer(cell.attn, f"{name}.attn", pyramid[0].across, [branch])]
    return [Pyramid(pyramid), *performer_operators(cell.attn, f"{name}.attn", [branch])]


def performer_operators(attn: Any, name: str, beside: Sequence[Operator] = ()) -> list[Operator]:
    """The operators of a performer's attention, which starts the stream anew, and of its MLP.

    Args:
        beside: what is added to the attention's answers.
    """
    mlp = attn.mlp
    return [
        *normed_into(norm_of(attn.norm1), linear_of(as_linear(attn.kqv), f"{name}.kqv")),
        Performer(array(attn.w), attn.epsilon),
        *beside,
        *linear_of(as_linear(attn.proj), f"{name}.proj", adds=True),
        norm_of(attn.norm2),
        *linear_of(as_linear(mlp[0]), f"{name}.mlp.0", gelu=True),
        *linear_of(as_linear(mlp[2]), f"{name}.mlp.2", adds=True),
    ]


def token_transformer(block: Any, name: str, across: int, beside: Sequence[Operator] = ()) -> list[Operator]:
    """The operators of an attention whose answers start the stream anew, and of its MLP.

    Args:
        across: side of the grid of tokens.
        beside: what is added to the attention's answers.
    """
    attn = block.attn
    before, attended, behind = _attention(attn, f"{name}.attn", across)
    behind = [replace(factor, adds=False) for factor in behind]
    if attn.value_skip and attended.head_dim * attended.heads != attn.dim:
        raise NotFusable(f"heads of {attn.dim // attn.num_heads} channels are filled up, and their values are added")
    return [
        *normed_into(norm_of(block.norm1), before),
        attended,
        *behind,
        NewStream(),
        *([AddValues()] if attn.value_skip else []),
        *beside,
        norm_of(block.norm2),
        *linear_of(as_linear(block.mlp.fc1), f"{name}.mlp.fc1", gelu=True),
        *linear_of(as_linear(block.mlp.fc2), f"{name}.mlp.fc2", adds=True),
    ]


def _attention(attn: Any, name: str, side: int) -> tuple[list[Factor], Attention, list[Factor]]:
    """An attention and the layers around it, on a grid of tokens of this side."""
    if type(attn) not in (MultiHeadAttention, WindowAttention, NarrowAttention):
        raise NotFusable(f"there is no rule for attention of type {type(attn).__name__}")
    qkv, heads = as_linear(attn.qkv), attn.num_heads
    head_dim, narrow = head_dims(attn, qkv.out_features)
    scale = (getattr(attn, "scale", None) or (narrow or head_dim) ** -0.5) * log2(e)
    proj = linear_of(as_linear(attn.proj), f"{name}.proj", adds=True)
    before, attended, behind = around(
        linear_of(qkv, f"{name}.qkv"), Attention(heads, head_dim), proj, scale, qk_dim=narrow
    )
    if isinstance(attn, WindowAttention):
        attended = in_windows(attended, side, attn.window_size)
    return before, attended, behind


def _normal(cell: Any, name: str, side: int) -> list[Operator]:
    """The operators of a normal cell, whose patches are a grid of this side."""
    if isinstance(cell, MergingCell):
        raise NotFusable("it merges tokens and gives them back")
    prefix = int(cell.class_token)
    if not isinstance(cell, NormalCell):
        raise NotFusable(f"{name} is a {type(cell).__name__}")
    before, attended, behind = _attention(cell.attn, f"{name}.attn", side)
    return [
        Grid(prefix),
        norm_of(cell.norm1),
        *before,
        attended,
        Branch(_branch(cell.PCM, f"{name}.PCM", side), prefix),
        *behind,
        norm_of(cell.norm2),
        *linear_of(as_linear(cell.mlp.fc1), f"{name}.mlp.fc1", gelu=True),
        *linear_of(as_linear(cell.mlp.fc2), f"{name}.mlp.fc2", adds=True),
    ]


def _branch(steps: nn.Sequential, name: str, side: int) -> list[Convolution]:
    """Convolutions with the batch norm and the SiLU that may follow each; the last adds to the stream."""
    convolutions = list[Convolution]()
    parts = [(i, step) for i, step in enumerate(steps) if not isinstance(step, nn.Identity)]
    while parts:
        place, conv = parts.pop(0)
        if type(conv) is nn.Conv2d and parts and type(parts[0][1]) is nn.BatchNorm2d:
            conv = fuse_conv_bn_eval(conv, cast(nn.BatchNorm2d, parts.pop(0)[1]))
        silu = bool(parts) and isinstance(parts[0][1], nn.SiLU)
        parts = parts[silu:]
        convolutions.append(convolution_of(conv, f"{name}.{place}", side, silu=silu, adds=not parts))
        side = convolutions[-1].across
    return convolutions
