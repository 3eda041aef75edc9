"""Makes the program of a vision transformer from its torch modules, dense or structured, in float32."""

from typing import Any

import numpy as np
from torch import nn

from ...kernels.cpu.program import Attention, Embed, Head, Merge, Operator, Program
from ..architectures.timm_models import type_name
from ..architectures.token_blocks import TokenBlock
from ..architectures.vitae import ViTAE
from ..serving.fused.chains import NotFusable, check_idle, take_apart
from .blocks import array, attention_of, bias_of, dense_of, mlp_of, norm_of
from .vitae import vitae_program

_VIT = "timm.models.vision_transformer.VisionTransformer"

_VIT_PARTS = {"patch_embed", "pos_drop", "patch_drop", "norm_pre", "blocks", "norm", "fc_norm", "head_drop", "head"}


def program_of(model: nn.Module, size: int) -> Program:
    """Make the program of a model that takes images of this side, px.

    Raises:
        NotFusable: the kernels have no operator for one of its parts; the message says which in a few words.
    """
    if isinstance(model, ViTAE):
        return vitae_program(model, size)
    if type_name(model) != _VIT:
        raise NotFusable(f"there is no program for {type(model).__name__}")
    vit: Any = model
    if unknown := dict(model.named_children()).keys() - _VIT_PARTS:
        raise NotFusable(f"{type(model).__name__} has a part {sorted(unknown)[0]!r}")
    for name in ("pos_drop", "patch_drop", "norm_pre", "fc_norm", "head_drop"):
        check_idle(name, getattr(vit, name))
    if vit.global_pool != "token" or vit.cls_token is None:
        raise NotFusable("its head does not read a class token")
    embed, operators = _embed(vit, size), list[Operator]()
    tokens = len(embed.start)
    for place, block in enumerate(vit.blocks):
        made = _block(block, f"blocks.{place}", tokens, vit.num_prefix_tokens)
        tokens -= sum(operator.count for operator in made if isinstance(operator, Merge))
        operators += made
    return Program(embed, operators, Head(norm_of(vit.norm), dense_of(vit.head)))


def _embed(vit: Any, size: int) -> Embed:
    conv = vit.patch_embed.proj
    if not isinstance(conv, nn.Conv2d) or conv.kernel_size != conv.stride or len(set(conv.kernel_size)) > 1:
        raise NotFusable("its patch embedding is no convolution of square patches side by side")
    check_idle("patch_embed.norm", vit.patch_embed.norm)
    registers = [] if vit.reg_token is None else [array(vit.reg_token[0])]
    prefix, positions = np.concatenate([array(vit.cls_token[0]), *registers]), array(vit.pos_embed[0])
    patches = (size // conv.kernel_size[0]) ** 2
    if len(positions) != patches + (0 if vit.no_embed_class else len(prefix)):
        raise NotFusable(f"it has {len(positions)} positions, images of {size} px have other patches")
    start = np.concatenate([prefix, np.zeros((patches, prefix.shape[1]), np.float32)])
    start[len(start) - len(positions) :] += positions
    return Embed(array(conv.weight), bias_of(conv), start, size)


def _block(block: nn.Module, name: str, tokens: int, prefix: int) -> list[Operator]:
    """The operators of one block, which gets so many tokens, `prefix` of them in front of the patches."""
    merging = block.merging if isinstance(block, TokenBlock) else None
    first = isinstance(block, TokenBlock) and block.read is not None
    if isinstance(block, TokenBlock) and block.read not in (None, 1):
        raise NotFusable(f"its last block computes {block.read} tokens alone")
    chains = take_apart(block)
    if chains is None:
        raise NotFusable(f"there is no rule for a block {type(block).__name__}")
    before, behind = attention_of(chains, name, first)
    attention = before[-1]
    assert isinstance(attention, Attention)
    count = 0 if merging is None else merging.count(tokens - prefix)
    if merging is None or not count:
        return [*before, *behind, *mlp_of(chains, name)]
    merge = Merge(attention.heads, attention.head_dim, prefix, count, merging.protect)
    return [*before, *behind, merge, *mlp_of(chains, name)]
