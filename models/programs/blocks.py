"""Operators of parts that several families of models have: linear layers, norms, attention, MLPs."""

from dataclasses import replace
from math import e, log2
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...kernels.chain_ir import BlockDiagonal, Dense, Gelu, LayerNorm, Linear, SelfAttention, Silu
from ...kernels.cpu.instruction_sets import LANES
from ...kernels.cpu.program import Attention, Factor, Floats, Norm, Operator, Renew, block_diagonal, dense, monarch
from ...kernels.tuning.chain import Chain
from ..architectures.timm_models import type_name
from ..serving.fused.chains import BlockChains, NotFusable, as_linear, as_norm, check_idle, mlp_of_pool


def attention_of(chains: BlockChains, name: str, first: bool = False) -> tuple[list[Operator], list[Factor]]:
    """The operators of a block's attention: to the attention itself, and behind it."""
    norm, qkv, attention, proj, _ = chains.attention.operators
    assert isinstance(attention, SelfAttention)
    heads, head_dim = attention.num_heads, attention.head_dim
    queries = np.ones(3 * heads * head_dim, np.float32)
    queries[: heads * head_dim] = attention.scale * log2(e)
    factors = linear_of(cast(Linear, qkv), f"{name}.attn.qkv", queries)
    behind = linear_of(cast(Linear, proj), f"{name}.attn.proj", adds=True)
    factors, attended, behind = _whole_vectors(factors, Attention(heads, head_dim, first), behind)
    return [norm_of(cast(LayerNorm, norm)), *factors, attended], behind


def _whole_vectors(
    before: list[Factor], attention: Attention, behind: list[Factor]
) -> tuple[list[Factor], Attention, list[Factor]]:
    """An attention and the layers around it, with heads of whole vectors: between dense layers zeros fill them up."""
    heads, head_dim, width = attention.heads, attention.head_dim, attention.head_dim + -attention.head_dim % LANES
    (qkv, *others), (proj, *more) = before, behind
    if width == head_dim or others or more or len(qkv.weight) > 1 or len(proj.weight) > 1:
        return before, attention, behind
    places = np.arange(3 * heads * width).reshape(-1, width)[:, :head_dim].reshape(-1)
    weight = np.zeros((3 * heads * width, qkv.weight.shape[2]), np.float32)
    bias = np.zeros(len(weight), np.float32)
    weight[places], bias[places] = qkv.weight[0], qkv.bias
    reading = np.zeros((proj.width, heads * width), np.float32)
    reading[:, places[: heads * head_dim]] = proj.weight[0]
    wide = dense(weight, bias, name=qkv.name), dense(reading, proj.bias, name=proj.name, adds=True)
    return [wide[0]], replace(attention, head_dim=width), [wide[1]]


def attention_pool_of(norm: nn.Module, pool: nn.Module, name: str) -> list[Operator]:
    """The operators of timm's attention pool: a query that is learnt attends to all tokens, and an MLP follows.

    All tokens get that query, of which the first one's answer is read, in place of what the token was.

    Raises:
        NotFusable: the kernels have no operator for a part of the pool.
    """
    part: Any = pool
    if type_name(pool) != "timm.layers.attention_pool.AttentionPoolLatent":
        raise NotFusable(f"there is no rule for pooling by {type(pool).__name__}")
    for place in ("q_norm", "k_norm", "proj_drop"):
        check_idle(f"{name}.{place}", getattr(part, place))
    if part.pos_embed is not None or part.latent_len != 1 or part.mlp is None:
        raise NotFusable("its pooling has positions, several queries or no MLP")
    with torch.no_grad():
        query = array(part.q(part.latent)[0, 0]) * part.head_dim**-0.5 * log2(e)
    kv = dense_of(part.kv)
    weight = np.concatenate([np.zeros((len(query), kv.weight.shape[2]), np.float32), kv.weight[0]])
    qkv = dense(weight, np.concatenate([query, kv.bias]), name=f"{name}.qkv")
    proj = linear_of(as_linear(part.proj), f"{name}.proj", adds=True)
    before, attention, behind = _whole_vectors([qkv], Attention(part.num_heads, part.head_dim, first=True), proj)
    nothing = np.zeros(proj[-1].width, np.float32)
    forget = Renew(Norm(nothing, nothing, 1e-6))
    return [norm_of(norm), *before, attention, forget, *behind, *mlp_of(mlp_of_pool(part), name)]


def mlp_of(chain: Chain, name: str) -> list[Operator]:
    """The operators of an MLP behind a norm."""
    norm, fc1, activation, fc2, _ = chain.operators
    kind = {"gelu": isinstance(activation, Gelu), "silu": isinstance(activation, Silu)}
    return [
        norm_of(cast(LayerNorm, norm)),
        *linear_of(cast(Linear, fc1), f"{name}.mlp.fc1", None, **kind),
        *linear_of(cast(Linear, fc2), f"{name}.mlp.fc2", adds=True),
    ]


def linear_of(layer: Linear, name: str, rows: Floats | None = None, **options: bool) -> list[Factor]:
    """The factors of a layer whose outputs are multiplied by `rows`."""
    bias = None if layer.bias is None else array(layer.bias)
    if isinstance(layer, Dense):
        factors = [dense(array(layer.weight), bias, name=name, **options)]
    elif isinstance(layer, BlockDiagonal):
        factors = [block_diagonal(array(layer.weight), layer.inputs.cpu().numpy(), bias, name=name, **options)]
    else:
        factors = monarch(array(layer.w1), array(layer.w2), bias, layer.out_features, name=name, **options)
    if rows is None:
        return factors
    last = factors[-1]
    by_output = rows[np.minimum(last.outputs, len(rows) - 1)]
    return [*factors[:-1], replace(last, weight=last.weight * by_output[..., None], bias=last.bias * rows)]


def norm_of(part: nn.Module | LayerNorm) -> Norm:
    """The operator of a LayerNorm.

    Raises:
        NotFusable: it is another norm.
    """
    norm = as_norm(part) if isinstance(part, nn.Module) else part
    return Norm(array(norm.weight), array(norm.bias), norm.eps)


def dense_of(part: nn.Module) -> Factor:
    """The factor of a classifier.

    Raises:
        NotFusable: it is no plain linear layer.
    """
    if type(part) is not nn.Linear:
        raise NotFusable(f"its head is a {type(part).__name__}")
    return dense(array(part.weight), None if part.bias is None else array(part.bias), name="head")


def bias_of(layer: nn.Conv2d | nn.Linear) -> Floats:
    """Return the bias of a layer, zeros where it has none."""
    return np.zeros(len(layer.weight), np.float32) if layer.bias is None else array(layer.bias)


def array(tensor: Tensor) -> Floats:
    """Return a float32 copy of a tensor."""
    return tensor.detach().to(torch.float32).cpu().numpy().copy()
