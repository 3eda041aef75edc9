"""Biases of pairs of tokens: tables of relative positions, and SwinV2's, whose attention takes cosines."""

from dataclasses import dataclass
from math import e, log, log2
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...kernels.cpu.program import BiasedAttention
from ...kernels.cpu.row_operators import Norm, RmsNorm
from ..serving.fused.chains import NotFusable
from .blocks import array

MASKED = -100.0
"""The bias of pairs of tokens that do not belong together: timm's."""


@dataclass(frozen=True)
class PairBias:
    """A bias for each head, query and key: table (heads, entries) by index (tokens, tokens)."""

    table: Tensor
    index: Tensor


def pair_bias(part: Any) -> PairBias:
    """The bias of pairs of tokens of timm's BEiT attention, shared module, RelPosBias or RelPosMlp."""
    source = getattr(part, "rel_pos", None) or part
    index = getattr(source, "relative_position_index", None)
    table = getattr(source, "relative_position_bias_table", None)
    if index is not None and table is not None:
        tokens = round(index.numel() ** 0.5)
        return PairBias(table.detach().T, index.reshape(tokens, tokens))
    with torch.no_grad():
        bias = source.get_bias()[0]
    heads, tokens, _ = bias.shape
    columns, inverse = torch.unique(bias.reshape(heads, -1), dim=1, return_inverse=True)
    return PairBias(columns, inverse.reshape(tokens, tokens))


def leaving_out(count: int, tokens: int, heads: int) -> PairBias:
    """The bias that keeps the first of tokens out of all answers."""
    index = (torch.arange(tokens) < count).long().expand(tokens, tokens)
    return PairBias(torch.tensor([0.0, MASKED]).expand(heads, 2), index)


def joined(a: PairBias | None, b: PairBias) -> PairBias:
    """The sum of biases that have one index.

    Raises:
        NotFusable: they have two.
    """
    if a is None:
        return b
    if not torch.equal(a.index, b.index):
        raise NotFusable("its attention has two kinds of biases")
    return PairBias(a.table + b.table, b.index)


def cosine(attn: Any, heads: int, head_dim: int) -> tuple[PairBias, list[Norm]]:
    """SwinV2's attention: biases that an MLP gives; norms of queries and keys that make cosines, times their scale."""
    with torch.no_grad():
        table = 16 * torch.sigmoid(attn.cpb_mlp(attn.relative_coords_table)).reshape(-1, heads).T
        scale = torch.clamp(attn.logit_scale, max=log(100)).exp().reshape(heads, 1) * log2(e)
    root, nothing = head_dim**-0.5, np.zeros(heads * head_dim, np.float32)
    queries = np.repeat(array(scale), head_dim, 1).reshape(-1) * np.float32(root)
    # x / |x| is an RMSNorm, divided by sqrt(head_dim).
    norms = [RmsNorm(weight, nothing, 1e-12) for weight in (queries, np.full_like(nothing, root))]
    return PairBias(table, attn.relative_position_index), list[Norm](norms)


def biased(bias: PairBias, heads: int, width: int, first: bool) -> BiasedAttention:
    table = array(bias.table) * np.float32(log2(e))
    return BiasedAttention(heads, width, first, table=table, index=bias.index.cpu().numpy().astype(np.int64))
