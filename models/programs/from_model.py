"""Makes the program of a vision transformer from its torch modules, dense or structured, in float32."""

from dataclasses import replace
from math import e, log2
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...kernels.chain_ir import Attention as ChainAttention
from ...kernels.chain_ir import Dense, Gelu, LayerNorm, Linear
from ...kernels.cpu.program import (
    Attention,
    Embed,
    Factor,
    Floats,
    Head,
    Merge,
    Norm,
    Operator,
    Program,
    dense,
    monarch,
)
from ..architectures.timm_models import type_name
from ..architectures.token_blocks import TokenBlock
from ..serving.fused.chains import NotFusable, take_apart, token_chains

_VIT = "timm.models.vision_transformer.VisionTransformer"

_VIT_PARTS = {"patch_embed", "pos_drop", "patch_drop", "norm_pre", "blocks", "norm", "fc_norm", "head_drop", "head"}


def program_of(model: nn.Module, size: int) -> Program:
    """Make the program of a model that takes images of this side, px.

    Raises:
        NotFusable: the kernels have no operator for one of its parts; the message says which in a few words.
    """
    if type_name(model) != _VIT:
        raise NotFusable(f"there is no program for a {type(model).__name__}")
    vit: Any = model
    if unknown := dict(model.named_children()).keys() - _VIT_PARTS:
        raise NotFusable(f"{type(model).__name__} has a part {sorted(unknown)[0]!r}")
    for name in ("pos_drop", "patch_drop", "norm_pre", "fc_norm", "head_drop"):
        _check_idle(name, getattr(vit, name))
    if vit.global_pool != "token" or vit.cls_token is None:
        raise NotFusable("its head does not read a class token")
    embed, operators = _embed(vit, size), list[Operator]()
    tokens = len(embed.start)
    for place, block in enumerate(vit.blocks):
        made = _block(block, f"blocks.{place}", tokens, vit.num_prefix_tokens)
        tokens -= sum(each.count for each in made if isinstance(each, Merge))
        operators += made
    return Program(embed, operators, Head(_norm_of(vit.norm), _dense_of(vit.head)))


def _embed(vit: Any, size: int) -> Embed:
    conv = vit.patch_embed.proj
    if not isinstance(conv, nn.Conv2d) or conv.kernel_size != conv.stride or len(set(conv.kernel_size)) > 1:
        raise NotFusable("its patch embedding is no convolution of square patches side by side")
    _check_idle("patch_embed.norm", vit.patch_embed.norm)
    registers = [] if vit.reg_token is None else [_array(vit.reg_token[0])]
    prefix, positions = np.concatenate([_array(vit.cls_token[0]), *registers]), _array(vit.pos_embed[0])
    patches = (size // conv.kernel_size[0]) ** 2
    if len(positions) != patches + (0 if vit.no_embed_class else len(prefix)):
        raise NotFusable(f"it has {len(positions)} positions, images of {size} px have other patches")
    start = np.concatenate([prefix, np.zeros((patches, prefix.shape[1]), np.float32)])
    start[len(start) - len(positions) :] += positions
    bias = np.zeros(len(conv.weight), np.float32) if conv.bias is None else _array(conv.bias)
    return Embed(_array(conv.weight), bias, start, size)


def _block(block: nn.Module, name: str, tokens: int, prefix: int) -> list[Operator]:
    """The operators of one block, which gets so many tokens, `prefix` of them in front of the patches."""
    merging = block.merging if isinstance(block, TokenBlock) else None
    first = isinstance(block, TokenBlock) and block.read is not None
    if isinstance(block, TokenBlock) and block.read not in (None, 1):
        raise NotFusable(f"its last block computes {block.read} tokens alone")
    chains = token_chains(block) if isinstance(block, TokenBlock) else take_apart(block)
    if chains is None:
        raise NotFusable(f"there is no rule for a block {type(block).__name__}")
    if chains.cell is not None:
        raise NotFusable("the branch of a ViTAE cell")
    norm, qkv, attention, proj, _ = chains.attention.operators
    norm2, fc1, gelu, fc2, _ = chains.mlp.operators
    assert isinstance(attention, ChainAttention)
    assert isinstance(gelu, Gelu)
    heads, head_dim = attention.num_heads, attention.head_dim
    queries = np.ones(3 * heads * head_dim, np.float32)
    queries[: heads * head_dim] = attention.scale * log2(e)
    count = 0 if merging is None else merging.count(tokens - prefix)
    merges = [Merge(heads, head_dim, prefix, count, merging.protect)] if merging is not None and count else []
    return [
        _norm(cast(LayerNorm, norm)),
        *_linear(cast(Linear, qkv), f"{name}.attn.qkv", queries),
        Attention(heads, head_dim, first),
        *_linear(cast(Linear, proj), f"{name}.attn.proj", adds=True),
        *merges,
        _norm(cast(LayerNorm, norm2)),
        *_linear(cast(Linear, fc1), f"{name}.mlp.fc1", gelu=True),
        *_linear(cast(Linear, fc2), f"{name}.mlp.fc2", adds=True),
    ]


def _linear(layer: Linear, name: str, rows: Floats | None = None, **options: bool) -> list[Factor]:
    """The factors of a layer whose outputs are multiplied by `rows`."""
    bias = None if layer.bias is None else _array(layer.bias)
    if isinstance(layer, Dense):
        factors = [dense(_array(layer.weight), bias, name=name, **options)]
    else:
        factors = monarch(_array(layer.w1), _array(layer.w2), bias, layer.out_features, name=name, **options)
    if rows is None:
        return factors
    last = factors[-1]
    by_output = rows[np.minimum(last.outputs, len(rows) - 1)]
    return [*factors[:-1], replace(last, weight=last.weight * by_output[..., None], bias=last.bias * rows)]


def _norm(norm: LayerNorm) -> Norm:
    return Norm(_array(norm.weight), _array(norm.bias), norm.eps)


def _norm_of(part: nn.Module) -> Norm:
    if not isinstance(part, nn.LayerNorm) or part.weight is None or part.bias is None:
        raise NotFusable(f"its norm is a {type(part).__name__}")
    return Norm(_array(part.weight), _array(part.bias), part.eps)


def _dense_of(part: nn.Module) -> Factor:
    if type(part) is not nn.Linear:
        raise NotFusable(f"its head is a {type(part).__name__}")
    return dense(_array(part.weight), None if part.bias is None else _array(part.bias), name="head")


def _check_idle(name: str, part: nn.Module | None) -> None:
    if part is not None and not isinstance(part, nn.Identity | nn.Dropout):
        raise NotFusable(f"{name} is a {type(part).__name__}")


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().to(torch.float32).cpu().numpy().copy()
