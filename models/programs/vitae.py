"""Makes the program of a ViTAE v1: reduction cells, whose convolutions read the image or a grid, and normal cells."""

from typing import Any, cast

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ...kernels.cpu.program import (
    Branch,
    Convolution,
    Embed,
    Grid,
    Head,
    Operator,
    Performer,
    Pixels,
    Program,
    Pyramid,
    convolution,
)
from ..architectures.vitae.merging import MergingCell
from ..architectures.vitae.reduction import EmbeddingReduction, PerformerReduction, PyramidOnlyReduction
from ..serving.fused.chains import NotFusable, as_linear, take_apart
from .blocks import array, attention_of, bias_of, dense_of, linear_of, mlp_of, norm_of

Reduction = PerformerReduction | PyramidOnlyReduction


def vitae_program(model: Any, size: int) -> Program:
    """Make the program of a ViTAE that takes images of this side, px.

    Raises:
        NotFusable: the kernels have no operator for one of its parts; the message says which in a few words.
    """
    embed: Embed | Pixels = Pixels(size)
    operators, side, prefix = list[Operator](), size, int(model.class_token)
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
    norm = None if isinstance(model.fc_norm, nn.Identity) else norm_of(model.fc_norm)
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
        pyramid.append(_convolution(conv, f"{name}.PRM.convs.{i}.0", side, gelu=True))
    if isinstance(cell, PyramidOnlyReduction):
        return [Pyramid(pyramid)]
    attn, mlp = cell.attn, cell.attn.mlp
    return [
        Pyramid(pyramid),
        norm_of(attn.norm1),
        *linear_of(as_linear(attn.kqv), f"{name}.attn.kqv"),
        Performer(array(attn.w), attn.epsilon),
        Branch(_branch(cell.PCM, f"{name}.PCM", side)),
        *linear_of(as_linear(attn.proj), f"{name}.attn.proj", adds=True),
        norm_of(attn.norm2),
        *linear_of(as_linear(mlp[0]), f"{name}.attn.mlp.0", gelu=True),
        *linear_of(as_linear(mlp[2]), f"{name}.attn.mlp.2", adds=True),
    ]


def _normal(cell: Any, name: str, side: int) -> list[Operator]:
    """The operators of a normal cell, whose patches are a grid of this side."""
    if isinstance(cell, MergingCell):
        raise NotFusable("it merges tokens and gives them back")
    chains, prefix = take_apart(cell), int(cell.class_token)
    if chains is None or chains.cell is None:
        raise NotFusable(f"{name} is a {type(cell).__name__}")
    before, behind = attention_of(chains, name)
    branch = Branch(_branch(cell.PCM, f"{name}.PCM", side), prefix)
    return [Grid(prefix), *before, branch, *behind, *mlp_of(chains.mlp, name)]


def _branch(steps: nn.Sequential, name: str, side: int) -> list[Convolution]:
    """Convolutions with the batch norm and the SiLU that may follow each; the last adds to the stream."""
    convolutions = list[Convolution]()
    parts = [(i, step) for i, step in enumerate(steps) if not isinstance(step, nn.Identity)]
    while parts:
        place, conv = parts.pop(0)
        if type(conv) is not nn.Conv2d:
            raise NotFusable(f"{name}.{place} is a {type(conv).__name__}")
        if parts and type(parts[0][1]) is nn.BatchNorm2d:
            conv = fuse_conv_bn_eval(conv, cast(nn.BatchNorm2d, parts.pop(0)[1]))
        silu = bool(parts) and isinstance(parts[0][1], nn.SiLU)
        parts = parts[silu:]
        convolutions.append(_convolution(conv, f"{name}.{place}", side, silu=silu, adds=not parts))
        side = convolutions[-1].across
    return convolutions


def _convolution(conv: Any, name: str, side: int, **options: Any) -> Convolution:
    for field in ("kernel_size", "stride", "dilation", "padding"):
        if isinstance(getattr(conv, field), str) or len(set(getattr(conv, field))) > 1:
            raise NotFusable(f"{name} has another {field} down than across")
    if conv.padding_mode != "zeros":
        raise NotFusable(f"{name} pads with {conv.padding_mode}")
    geometry = {field: getattr(conv, field)[0] for field in ("stride", "dilation", "padding")}
    return convolution(array(conv.weight), bias_of(conv), side, conv.groups, **geometry, name=name, **options)
