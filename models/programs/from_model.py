"""Makes the program of a vision transformer from its torch modules, dense or structured, in float32."""

from typing import Any

import numpy as np
from torch import nn

from ...kernels.cpu.factors import dense
from ...kernels.cpu.program import Embed, Head, JoinedHead, Merge, NormedEmbed, Operator, Program
from ...kernels.cpu.row_operators import Renew, Unmerge
from ..architectures.t2t_vit import T2TViT
from ..architectures.timm_models import type_name
from ..architectures.token_avg_head import TokenAvgHead
from ..architectures.vitae import ViTAE, ViTAEv2
from ..serving.fused.chains import NotFusable, check_idle
from .blocks import array, bias_of, dense_of, norm_if, patch_of
from .families.hierarchical import HIERARCHICAL
from .families.t2t_vit import t2t_program
from .families.token_mixing import mixer_program
from .families.vitae import vitae_program
from .transformer import attention_pool
from .vit_blocks import vit_blocks

_DISTILLED = "timm.models.deit.VisionTransformerDistilled"
_EVA = "timm.models.eva.Eva"
VITS = (
    *("timm.models.vision_transformer.VisionTransformer", _DISTILLED, _EVA),
    *("timm.models.beit.Beit", "timm.models.vision_transformer_relpos.VisionTransformerRelPos"),
)
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
    "rope",
    "rel_pos_bias",
    "shared_rel_pos",
}


BY_CLASS = {**HIERARCHICAL, "timm.models.mlp_mixer.MlpMixer": mixer_program}
"""What makes the program of a model, by its class."""


def program_of(model: nn.Module, size: int) -> Program:
    """Make the program of a model that takes images of this side, px.

    Raises:
        NotFusable: the kernels have no operator for one of its parts; the message says which in a few words.
    """
    if isinstance(model, ViTAE | ViTAEv2):
        return vitae_program(model, size)
    if isinstance(model, T2TViT):
        return t2t_program(model, size)
    if (made := BY_CLASS.get(type_name(model))) is not None:
        return made(model, size)
    if type_name(model) not in VITS:
        raise NotFusable(f"there is no program for {type(model).__name__}")
    vit: Any = model
    if unknown := dict(model.named_children()).keys() - _VIT_PARTS:
        raise NotFusable(f"{type(model).__name__} has a part {sorted(unknown)[0]!r}")
    for name in ("pos_drop", "patch_drop", "head_drop"):
        check_idle(name, getattr(vit, name, None))
    embed = _embed(vit, size)
    operators = [
        *_norms(getattr(vit, "norm_pre", None)),
        *vit_blocks(vit, len(embed.start), size, vit.num_prefix_tokens),
    ]
    return Program(embed, *_pooled(vit, operators, len(embed.start)))


def _norms(*parts: nn.Module | None) -> list[Operator]:
    """The operators that let norms renew the stream."""
    return [Renew(norm) for norm in map(norm_if, parts) if norm is not None]


def _pooled(vit: Any, operators: list[Operator], tokens: int) -> tuple[list[Operator], Head]:
    """All operators, and the head: timm's `norm`, a class token or a mean of the patches, `fc_norm`, classifier."""
    if type_name(vit) == _DISTILLED:  # two tokens, two classifiers; the answer is the mean of theirs
        both = vit.head, vit.head_dist
        weight = np.concatenate([dense_of(head).weight[0] for head in both], 1) / 2
        classifier = dense(weight, (bias_of(both[0]) + bias_of(both[1])) / 2, name="head")
        return [*operators, *_norms(vit.norm)], JoinedHead(None, classifier, 1, 1)
    joined, pool, norm = isinstance(vit.head, TokenAvgHead), getattr(vit, "attn_pool", None), norm_if(vit.fc_norm)
    reads_all = pool is None or getattr(vit, "pool_include_prefix", type_name(vit) == _EVA)
    left_out = 0 if reads_all else vit.num_prefix_tokens
    merges = any(isinstance(operator, Merge) for operator in operators)
    if merges and (joined or left_out or vit.global_pool == "avg"):  # attention knows sizes, but not beside a bias
        operators = [*operators, Unmerge()]
    if pool is not None:
        pooling = attention_pool(vit.norm, pool, "attn_pool", tokens, left_out)
        return [*operators, *pooling], Head(norm, dense_of(vit.head))
    if joined:
        classifier = dense(array(vit.head.weight), bias_of(vit.head), name="head")
        return [*operators, *_norms(vit.norm)], JoinedHead(None, classifier, vit.head.prefix)
    if vit.global_pool not in ("token", "avg") or (vit.global_pool == "token" and vit.cls_token is None):
        raise NotFusable(f"its head pools by {vit.global_pool!r}")
    if vit.global_pool == "token" and norm is None:  # only one token is read of the norm
        return operators, Head(norm_if(vit.norm), dense_of(vit.head))
    prefix = 0 if getattr(vit, "pool_include_prefix", False) else vit.num_prefix_tokens
    head = Head(norm, dense_of(vit.head), prefix if vit.global_pool == "avg" else None)
    return [*operators, *_norms(vit.norm)], head


def _embed(vit: Any, size: int) -> Embed:
    conv = vit.patch_embed.proj
    patches = (size // patch_of(conv)) ** 2
    width, front = len(conv.weight), [getattr(vit, name, None) for name in ("cls_token", "dist_token", "reg_token")]
    prefix = np.concatenate([np.zeros((0, width), np.float32), *(array(t[0]) for t in front if t is not None)])
    embedded = getattr(vit, "pos_embed", None)
    positions = np.zeros((0, width), np.float32) if embedded is None else array(embedded[0])
    if embedded is not None and len(positions) != patches + (0 if getattr(vit, "no_embed_class", 0) else len(prefix)):
        raise NotFusable(f"it has {len(positions)} positions, images of {size} px have other patches")
    start = np.concatenate([prefix, np.zeros((patches, prefix.shape[1]), np.float32)])
    start[len(start) - len(positions) :] += positions
    embed = array(conv.weight), bias_of(conv), start, size
    norm = norm_if(vit.patch_embed.norm)
    return Embed(*embed) if norm is None else NormedEmbed(*embed, norm)
