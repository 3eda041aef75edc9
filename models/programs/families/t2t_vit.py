"""Makes the program of a T2T-ViT: overlapping patches, joined twice behind attention, then a transformer."""

from typing import Any

import numpy as np

from ....kernels.chain_ir import Dense
from ....kernels.cpu.factors import convolution
from ....kernels.cpu.program import Branch, Convolution, Grid, Head, Operator, Pixels, Program, Pyramid
from ....kernels.cpu.row_operators import StartTokens
from ...architectures.vitae.reduction import PerformerAttention
from ...serving.fused.chains import NotFusable, as_linear
from ..blocks import array, dense_of, norm_of
from ..heads import whole_vectors
from ..vit_blocks import vit_blocks
from .vitae import performer_operators, token_transformer


def t2t_program(model: Any, size: int) -> Program:
    """Make the program of a T2T-ViT that takes images of this side, px.

    Raises:
        NotFusable: the kernels have no operator for a part; names it.
    """
    if size != model.img_size:
        raise NotFusable(f"it has positions for images of {model.img_size} px, not {size}")
    module, operators, grid = model.tokens_to_token, list[Operator](), (size, 3)
    for name, kernel, stride in (("attention1", 7, 4), ("attention2", 3, 2)):
        attention, path = getattr(module, name), f"tokens_to_token.{name}"
        unfold = _unfolding(*grid, kernel, stride, f"{path}.unfold")
        operators += [*([Grid()] if operators else []), Pyramid([unfold])]
        if isinstance(attention, PerformerAttention):
            operators += performer_operators(attention, path)
            grid = unfold.across, attention.proj.out_features
        else:
            operators += token_transformer(attention, path, unfold.across)
            grid = unfold.across, attention.attn.dim
    start = array(model.pos_embed[0])
    start[0] += array(model.cls_token[0, 0])
    operators += [Grid(), StartTokens(start), Branch([_joining(module.project, *grid)], 1)]
    operators += vit_blocks(model, len(start), size, prefix=1)
    return Program(Pixels(size), operators, Head(norm_of(model.norm), dense_of(model.head)))


def _unfolding(side: int, channels: int, kernel: int, stride: int, name: str) -> Convolution:
    """A convolution that gives the pixels under its kernel, those of a channel together, as `Tensor.unfold` does.

    More channels, their mean, fill them up to whole vectors.
    """
    count = channels * kernel**2
    weight = np.full((whole_vectors(count), count), 1 / count, np.float32)
    weight[:count] = np.eye(count)
    shaped = weight.reshape(-1, channels, kernel, kernel)
    return convolution(shaped, None, side, stride=stride, padding=stride // 2, name=name)


def _joining(project: Any, side: int, channels: int) -> Convolution:
    """The last unfolding and the layer that reads it, as a convolution of three by three."""
    layer = as_linear(project)
    if not isinstance(layer, Dense):
        raise NotFusable("the layer that joins its patches is structured")
    weight = array(layer.weight).reshape(-1, channels, 3, 3)
    bias = None if layer.bias is None else array(layer.bias)
    return convolution(weight, bias, side, stride=2, padding=1, adds=True, name="tokens_to_token.project")
