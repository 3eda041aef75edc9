"""Operators of parts that several families of models have: linear layers, norms, attention, MLPs."""

from dataclasses import replace
from math import e, log2
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from ...kernels.chain_ir import BlockDiagonal, Dense, Gelu, LayerNorm, Linear, SelfAttention, Silu
from ...kernels.cpu.program import Attention, Factor, Floats, Norm, Operator, block_diagonal, dense, monarch
from ..serving.fused.chains import BlockChains, NotFusable, as_norm


def attention_of(chains: BlockChains, name: str, first: bool = False) -> tuple[list[Operator], list[Factor]]:
    """The operators of a block's attention: to the attention itself, and behind it."""
    norm, qkv, attention, proj, _ = chains.attention.operators
    assert isinstance(attention, SelfAttention)
    heads, head_dim = attention.num_heads, attention.head_dim
    queries = np.ones(3 * heads * head_dim, np.float32)
    queries[: heads * head_dim] = attention.scale * log2(e)
    factors = linear_of(cast(Linear, qkv), f"{name}.attn.qkv", queries)
    before: list[Operator] = [norm_of(cast(LayerNorm, norm)), *factors, Attention(heads, head_dim, first)]
    return before, linear_of(cast(Linear, proj), f"{name}.attn.proj", adds=True)


def mlp_of(chains: BlockChains, name: str) -> list[Operator]:
    """The operators of a block's MLP."""
    norm, fc1, activation, fc2, _ = chains.mlp.operators
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
