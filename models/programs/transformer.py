"""Operators of timm's transformer blocks, part by part: norms, attention with positions, MLPs and gates.

A block is x + scale1 attn(norm1(x)), then x + scale2 mlp(norm2(x)). A part without a rule is named when it is refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import e, log2
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...kernels.chain_ir import Dense, Linear
from ...kernels.cpu.factors import dense
from ...kernels.cpu.program import Attention, Factor, Operator, ResponseNorm
from ...kernels.cpu.row_operators import Glu, InnerNorm, Norm, Places, PostNorm, QkNorm, ReadStream, Renew
from ..architectures.plain_mlp import PLAIN_MLPS
from ..architectures.t2t_vit import Block as T2tBlock
from ..architectures.timm_models import type_name
from ..architectures.token_blocks import TokenBlock
from ..architectures.vitae.attention import MultiHeadAttention
from ..layers.narrow_attention import NarrowAttention
from ..serving.fused.chains import TIMM_ATTENTIONS, NotFusable, as_linear, check_idle, parts_of, scaled, times
from .biases import PairBias, biased, cosine, joined, leaving_out, pair_bias
from .blocks import array, dense_of, linear_of, norm_if, norm_of
from .heads import Angles, around, by_places, head_dims, places_of, rotary_of, stacked, taking, whole_gates, with_means

BLOCKS = {
    type_name(TokenBlock),
    type_name(T2tBlock),
    "timm.models.vision_transformer.Block",
    "timm.models.eva.EvaBlock",
    "timm.models.beit.Block",
    "timm.models.vision_transformer_relpos.RelPosBlock",
    "timm.models.swin_transformer.SwinTransformerBlock",
}
POST_NORM = {
    "timm.models.vision_transformer.ResPostBlock",
    "timm.models.eva.EvaBlockPostNorm",
    "timm.models.vision_transformer_relpos.ResPostRelPosBlock",
    "timm.models.swin_transformer_v2.SwinTransformerV2Block",
}
"""Blocks whose norms are of what is added: x + norm1(attn(x)), then x + norm2(mlp(x))."""

ATTENTIONS = {
    *TIMM_ATTENTIONS,
    *(type_name(MultiHeadAttention), type_name(NarrowAttention)),
    *("timm.models.eva.EvaAttention", "timm.layers.attention.AttentionRope"),
    *("timm.models.beit.Attention", "timm.models.vision_transformer_relpos.RelPosAttention"),
    *("timm.models.swin_transformer.WindowAttention", "timm.models.swin_transformer_v2.WindowAttention"),
}
QUICK_GELU = 1.702
"""x sigmoid(1.702 x), OpenAI's CLIP."""

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def attention_operators(
    block: Any, name: str, *, first: bool = False, angles: Angles | None = None, shared: PairBias | None = None
) -> tuple[list[Operator], list[Factor]]:
    """The operators of a block's attention: to the attention itself and a norm of its outputs, and behind it.

    Args:
        first: whether the first token alone is computed.
        angles: of rotary embeddings.
        shared: a bias that all blocks have.

    Raises:
        NotFusable: the kernels have no operator for a part; names it.
    """
    if type_name(block) not in BLOCKS | POST_NORM:
        raise NotFusable(f"there is no rule for a block {type(block).__name__}")
    attn, post = block.attn, type_name(block) in POST_NORM
    parts = attention_parts(attn)
    qkv = qkv_of(attn, parts, f"{name}.attn")
    proj = linear_of(scaled(as_linear(parts["proj"]), _gamma(block, 1)), f"{name}.attn.proj", adds=not post)
    if parts["rel_pos"] is not None or getattr(attn, "relative_position_bias_table", None) is not None:
        shared = joined(shared, pair_bias(attn))
    between, proj = attention_chain(attn, parts, qkv, proj, first=first, angles=angles, shared=shared)
    return [ReadStream() if post else norm_of(block.norm1), *between], proj


def attention_chain(
    attn: Any,
    parts: Mapping[str, nn.Module | None],
    qkv: list[Factor],
    proj: list[Factor],
    *,
    first: bool = False,
    angles: Angles | None = None,
    shared: PairBias | None = None,
) -> tuple[list[Operator], list[Factor]]:
    """The operators from queries, keys and values to the attention and a norm of its outputs; the projection behind.

    Args:
        attn: has `num_heads`.
        parts: norms of queries, keys and outputs, by their names in timm, and SwinV2's MLP of biases.

    Raises:
        NotFusable: the kernels have no operator for a part; names it.
    """
    heads = int(attn.num_heads)
    head_dim, narrow = head_dims(attn, qkv[-1].width)
    places, width = places_of(head_dim, angles)
    normed, between = _inner(parts.get("norm")), _between(parts, heads, places, width, angles)
    if width != head_dim and normed:
        raise NotFusable(f"it has a norm behind attention with heads of {head_dim}, which are filled up to {width}")
    scale = (narrow or head_dim) ** -0.5 * log2(e)
    if parts.get("cpb_mlp") is not None:
        shared, norms = cosine(attn, heads, head_dim)
        between, scale = [QkNorm(heads, *(by_places(norm, heads, places, width) for norm in norms))], 1.0
    elif between and isinstance(between[0], QkNorm):
        between[0], scale = _times_queries(between[0], scale), 1.0
    attention = Attention(heads, head_dim, first) if shared is None else biased(shared, heads, head_dim, first)
    qkv, attention, proj = around(qkv, attention, proj, scale, angles, narrow)
    if width != head_dim and between and isinstance(norm := between[0], QkNorm) and type(norm.queries) is Norm:
        qkv = with_means(qkv, heads, places, width)
    return [*qkv, *between, attention, *normed], proj


def attention_parts(attn: nn.Module) -> dict[str, nn.Module | None]:
    """The parts of an attention, whichever of them it has.

    Raises:
        NotFusable: there is no rule for it, or a part.
    """
    if type_name(attn) not in ATTENTIONS:
        raise NotFusable(f"there is no rule for attention of type {type(attn).__name__}")
    norms, drops = ("q_norm", "k_norm", "norm"), ("attn_drop", "proj_drop", "gate")
    parts = parts_of(attn, "qkv", *_PROJECTIONS, "proj", "rel_pos", "softmax", "cpb_mlp", *norms, *drops)
    for part in drops:
        check_idle(f"attn.{part}", parts[part])
    return parts


def mlp_operators(mlp: Any, scale: nn.Module | Tensor | None, name: str, *, adds: bool = True) -> list[Operator]:
    """The operators of an MLP, plain or gated, whose outputs are multiplied by a scale and, with `adds`, added.

    Raises:
        NotFusable: the kernels have no operator for a part; names it.
    """
    kind = type_name(mlp).removeprefix("timm.layers.mlp.")
    if type_name(mlp) not in PLAIN_MLPS and kind not in ("GluMlp", "SwiGLU", "GlobalResponseNormMlp"):
        raise NotFusable(f"there is no rule for an MLP of type {type(mlp).__name__}")
    fc1s = ("fc1_g", "fc1_x") if kind == "SwiGLU" else ("fc1",)
    parts = parts_of(mlp, *fc1s, "act", "fc2", "drop", "drop1", "drop2", "norm", "grn")
    for part in ("drop", "drop1", "drop2"):
        check_idle(f"mlp.{part}", parts[part])
    normed, (activation, factor) = _inner(parts["norm"]), activation_of(parts["act"])
    grn: Any = parts["grn"]
    if grn is not None:
        normed = [ResponseNorm(array(grn.weight), array(grn.bias), float(grn.eps))]
    fc2 = scaled(as_layer(parts["fc2"]), scale)
    behind = linear_of(fc2, f"{name}.fc2", adds=adds)
    if kind not in ("GluMlp", "SwiGLU"):
        fc1 = as_layer(parts["fc1"])
        if factor != 1:
            if normed:
                raise NotFusable("its MLP has a norm behind QuickGELU")
            fc1 = times(fc1, torch.full((fc1.out_features,), factor))
            undo = torch.full((fc2.out_features,), 1 / factor)
            behind = linear_of(times(fc2, undo, bias=False), f"{name}.fc2", adds=adds)
        before = linear_of(fc1, f"{name}.fc1", **{activation: True})
        return [*before, *normed, *behind]
    if activation != "silu" or factor != 1:
        raise NotFusable(f"its gate is a {type(parts['act']).__name__}, not SiLU")
    before = stacked([linear_of(as_layer(parts[part]), f"{name}.fc1") for part in fc1s])
    before, behind = whole_gates(before, behind, last=bool(getattr(mlp, "gate_last", False)))
    return [*before, Glu(), *normed, *behind]


def _gamma(block: Any, number: int) -> nn.Module | Tensor | None:
    """What a block multiplies its attention's or its MLP's outputs by."""
    gamma: Tensor | None = getattr(block, f"gamma_{number}", None)
    return getattr(block, f"ls{number}", None) if gamma is None else gamma.detach()


def block_operators(
    block: Any, name: str, angles: Angles | None = None, shared: PairBias | None = None, *, first: bool = False
) -> tuple[list[Operator], list[Operator]]:
    """The operators of a block's attention and of its MLP, as `attention_operators` and `mlp_operators` give them."""
    before, behind = attention_operators(block, name, first=first, angles=angles, shared=shared)
    sides = ("norm1", "attn", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2")
    parts = parts_of(block, *sides)
    for part in ("drop_path1", "drop_path2"):
        check_idle(part, parts[part])
    post = type_name(block) in POST_NORM
    mlp = mlp_operators(block.mlp, _gamma(block, 2), f"{name}.mlp", adds=not post)
    if post:
        return [*before, *behind, PostNorm(norm_of(block.norm1))], [ReadStream(), *mlp, PostNorm(norm_of(block.norm2))]
    return [*before, *behind], [norm_of(block.norm2), *mlp]


def as_layer(part: nn.Module | None) -> Linear:
    """Return a linear layer, or a convolution of single pixels, as the kernels take it.

    Raises:
        NotFusable: it is another layer.
    """
    if type(part) is nn.Conv2d and set(part.kernel_size) | set(part.stride) | {part.groups} == {1}:
        return Dense(part.weight.detach().flatten(1), None if part.bias is None else part.bias.detach())
    return as_linear(part)


def attention_pool(norm: nn.Module, pool: Any, name: str, tokens: int, left_out: int) -> list[Operator]:
    """The operators of timm's attention pool: a query that is learnt attends to all tokens, and an MLP follows.

    All tokens get that query, of which the first one's answer is read, in place of what the token was.

    Args:
        left_out: of so many tokens, the first that it does not attend to.

    Raises:
        NotFusable: the kernels have no operator for a part of the pool.
    """
    if type_name(pool) != "timm.layers.attention_pool.AttentionPoolLatent":
        raise NotFusable(f"there is no rule for pooling by {type(pool).__name__}")
    for place in ("q_norm", "k_norm", "proj_drop"):
        check_idle(f"{name}.{place}", getattr(pool, place))
    if pool.pos_embed is not None or pool.latent_len != 1 or pool.mlp is None:
        raise NotFusable("its pooling has positions, several queries or no MLP")
    with torch.no_grad():
        query = array(pool.q(pool.latent)[0, 0])
    kv = dense_of(pool.kv)
    weight = np.concatenate([np.zeros((len(query), kv.weight.shape[2]), np.float32), kv.weight[0]])
    qkv = dense(weight, np.concatenate([query, kv.bias]), name=f"{name}.qkv")
    proj = linear_of(as_linear(pool.proj), f"{name}.proj", adds=True)
    scale = pool.head_dim**-0.5 * log2(e)
    attention = Attention(pool.num_heads, pool.head_dim, first=True)
    if left_out:
        attention = biased(leaving_out(left_out, tokens, pool.num_heads), pool.num_heads, pool.head_dim, first=True)
    before, attention, behind = around([qkv], attention, proj, scale)
    nothing = np.zeros(proj[-1].width, np.float32)
    forget = Renew(Norm(nothing, nothing, 1e-6))
    mlp = mlp_operators(pool.mlp, None, f"{name}.mlp")
    return [norm_of(norm), *before, attention, forget, *behind, norm_of(pool.norm), *mlp]


def activation_of(part: nn.Module | None) -> tuple[str, float]:
    """Return an activation's field of `Factor`, and what its input is multiplied by and its output divided by.

    GELU by tanh is taken for GELU: they differ by 4.8e-4 at most, less than bfloat16 rounds there.

    Raises:
        NotFusable: it is another activation.
    """
    if isinstance(part, nn.SiLU):
        return "silu", 1.0
    if type(part).__name__ == "QuickGELU":
        return "silu", QUICK_GELU
    if isinstance(part, nn.GELU) or type(part).__name__ in ("GELUTanh", "GELU"):
        return "gelu", 1.0
    raise NotFusable(f"its activation is a {type(part).__name__}")


def _inner(part: nn.Module | None) -> list[Operator]:
    return [] if (norm := norm_if(part)) is None else [InnerNorm(norm)]


def qkv_of(attn: Any, parts: dict[str, nn.Module | None], name: str) -> list[Factor]:
    """The factors of queries, keys and values; heads that share keys and values have them each."""
    if parts["qkv"] is not None:
        layer = linear_of(as_linear(parts["qkv"]), f"{name}.qkv")
        if getattr(attn, "q_bias", None) is None:
            return layer
        q, v = array(attn.q_bias), array(attn.v_bias)
        return [*layer[:-1], replace(layer[-1], bias=np.concatenate([q, np.zeros_like(q), v]))]
    layers = [linear_of(as_linear(parts[part]), f"{name}.qkv") for part in _PROJECTIONS]
    groups = layers[0][-1].width // layers[1][-1].width
    if groups > 1:
        heads = np.arange(attn.num_heads) // groups * attn.head_dim
        rows = (heads[:, None] + np.arange(attn.head_dim)).reshape(-1)
        layers[1:] = [taking(layer, rows) for layer in layers[1:]]
    return stacked(layers)


def _between(
    parts: Mapping[str, nn.Module | None], heads: int, places: Places, width: int, angles: Angles | None
) -> list[Operator]:
    """The operators on queries and keys: norms, and rotations."""
    operators = list[Operator]()
    if norms := [norm for norm in (norm_if(parts.get("q_norm")), norm_if(parts.get("k_norm"))) if norm is not None]:
        operators.append(QkNorm(heads, *(by_places(norm, heads, places, width) for norm in norms)))
    if angles is not None:
        operators.append(rotary_of(angles, heads, places))
    return operators


def _times_queries(norm: QkNorm, scale: float) -> QkNorm:
    queries = replace(norm.queries, weight=norm.queries.weight * scale, bias=norm.queries.bias * scale)
    return replace(norm, queries=queries)
