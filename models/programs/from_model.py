"""Makes the program of a vision transformer from its torch modules, dense or structured, in float32."""

from typing import Any

import numpy as np
from torch import nn

from ...kernels.cpu.program import Attention, Embed, Head, JoinedHead, Merge, Norm, Operator, Program, Renew, dense
from ..architectures.timm_models import type_name
from ..architectures.token_avg_head import TokenAvgHead
from ..architectures.token_blocks import TokenBlock
from ..architectures.vitae import ViTAE
from ..serving.fused.chains import NotFusable, check_idle, take_apart
from .blocks import array, attention_of, attention_pool_of, bias_of, dense_of, mlp_of, norm_of
from .vitae import vitae_program

_DISTILLED = "timm.models.deit.VisionTransformerDistilled"
VITS = ("timm.models.vision_transformer.VisionTransformer", _DISTILLED)
"""The classes of timm that there is a program for, if its parts have operators."""

_VIT_PARTS = {
    "attn_pool",
    "head_dist",
    "patch_embed",
    "pos_drop",
    "patch_drop",
    "norm_pre",
    "blocks",
    "norm",
    "fc_norm",
    "head_drop",
    "head",
}


def program_of(model: nn.Module, size: int) -> Program:
    """Make the program of a model that takes images of this side, px.

    Raises:
        NotFusable: the kernels have no operator for one of its parts; the message says which in a few words.
    """
    if isinstance(model, ViTAE):
        return vitae_program(model, size)
    if type_name(model) not in VITS:
        raise NotFusable(f"there is no program for {type(model).__name__}")
    vit: Any = model
    if unknown := dict(model.named_children()).keys() - _VIT_PARTS:
        raise NotFusable(f"{type(model).__name__} has a part {sorted(unknown)[0]!r}")
    for name in ("pos_drop", "patch_drop", "head_drop"):
        check_idle(name, getattr(vit, name))
    embed, operators = _embed(vit, size), _norms(vit.norm_pre)
    tokens = len(embed.start)
    for place, block in enumerate(vit.blocks):
        made = _block(block, f"blocks.{place}", tokens, vit.num_prefix_tokens)
        tokens -= sum(operator.count for operator in made if isinstance(operator, Merge))
        operators += made
    return Program(embed, *_pooled(vit, operators))


def _norms(*parts: nn.Module) -> list[Operator]:
    """The operators that let norms renew the stream."""
    return [Renew(norm) for norm in map(_norm, parts) if norm is not None]


def _norm(part: nn.Module) -> Norm | None:
    return None if isinstance(part, nn.Identity) else norm_of(part)


def _pooled(vit: Any, operators: list[Operator]) -> tuple[list[Operator], Head]:
    """All operators, and the head: timm's `norm`, a class token or a mean of the patches, `fc_norm`, classifier."""
    if type_name(vit) == _DISTILLED:  # two tokens, two classifiers; the answer is the mean of theirs
        both = vit.head, vit.head_dist
        weight = np.concatenate([dense_of(head).weight[0] for head in both], 1) / 2
        classifier = dense(weight, (bias_of(both[0]) + bias_of(both[1])) / 2, name="head")
        return [*operators, *_norms(vit.norm)], JoinedHead(None, classifier, 1, 1)
    joined, pool = isinstance(vit.head, TokenAvgHead), getattr(vit, "attn_pool", None)
    if (joined or pool or vit.global_pool == "avg") and any(isinstance(operator, Merge) for operator in operators):
        raise NotFusable("its pooling counts merged tokens by their sizes")
    norm = _norm(vit.fc_norm)
    if pool is not None:
        if vit.num_prefix_tokens and not vit.pool_include_prefix:
            raise NotFusable("its pooling leaves out tokens in front of the patches")
        return [*operators, *attention_pool_of(vit.norm, pool, "attn_pool")], Head(norm, dense_of(vit.head))
    if joined:
        classifier = dense(array(vit.head.weight), bias_of(vit.head), name="head")
        return [*operators, *_norms(vit.norm)], JoinedHead(None, classifier, vit.head.prefix)
    if vit.global_pool not in ("token", "avg") or (vit.global_pool == "token" and vit.cls_token is None):
        raise NotFusable(f"its head pools by {vit.global_pool!r}")
    if vit.global_pool == "token" and norm is None:  # only one token is read of the norm
        return operators, Head(_norm(vit.norm), dense_of(vit.head))
    prefix = 0 if getattr(vit, "pool_include_prefix", False) else vit.num_prefix_tokens
    head = Head(norm, dense_of(vit.head), prefix if vit.global_pool == "avg" else None)
    return [*operators, *_norms(vit.norm)], head


def _embed(vit: Any, size: int) -> Embed:
    conv = vit.patch_embed.proj
    if not isinstance(conv, nn.Conv2d) or conv.kernel_size != conv.stride or len(set(conv.kernel_size)) > 1:
        raise NotFusable("its patch embedding is no convolution of square patches side by side")
    check_idle("patch_embed.norm", vit.patch_embed.norm)
    width, front = len(conv.weight), (vit.cls_token, getattr(vit, "dist_token", None), vit.reg_token)
    prefix = np.concatenate([np.zeros((0, width), np.float32), *(array(t[0]) for t in front if t is not None)])
    positions = np.zeros((0, width), np.float32) if vit.pos_embed is None else array(vit.pos_embed[0])
    patches = (size // conv.kernel_size[0]) ** 2
    if vit.pos_embed is not None and len(positions) != patches + (0 if vit.no_embed_class else len(prefix)):
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
    chains = take_apart(block, any_activation=True)
    if chains is None:
        raise NotFusable(f"there is no rule for a block {type(block).__name__}")
    before, behind = attention_of(chains, name, first)
    attention = before[-1]
    assert isinstance(attention, Attention)
    count = 0 if merging is None else merging.count(tokens - prefix)
    if merging is None or not count:
        return [*before, *behind, *mlp_of(chains.mlp, name)]
    merge = Merge(attention.heads, attention.head_dim, prefix, count, merging.protect)
    return [*before, *behind, merge, *mlp_of(chains.mlp, name)]
