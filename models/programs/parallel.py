"""Operators of timm's parallel blocks: several attentions and MLPs side by side, and an MLP beside an attention."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from ...kernels.chain_ir import Dense
from ...kernels.cpu.factors import dense
from ...kernels.cpu.program import Attention, Factor, Operator
from ...kernels.cpu.row_operators import Keep
from ..serving.fused.chains import NotFusable, as_linear, check_idle, parts_of, scaled
from .blocks import linear_of, norm_of
from .heads import only_dense
from .transformer import activation_of, attention_chain, attention_parts, mlp_operators, qkv_of


def _things(block: Any, name: str) -> list[Operator]:
    """x + the sum of attentions of it, then + the sum of MLPs (arXiv 2203.09795): wider ones compute the sums."""
    parts_of(block, "attns", "ffns")
    attentions, mlps = list[list[Operator]](), list[list[Operator]]()
    for branch in block.attns:
        parts = attention_parts(branch.attn)
        check_idle("drop_path", branch.drop_path)
        proj = linear_of(scaled(as_linear(parts["proj"]), branch.ls), f"{name}.attns.proj", adds=True)
        between, proj = attention_chain(branch.attn, parts, qkv_of(branch.attn, parts, f"{name}.attns"), proj)
        attentions.append([norm_of(branch.norm), *between, *proj])
    for branch in block.ffns:
        check_idle("drop_path", branch.drop_path)
        mlps.append([norm_of(branch.norm), *mlp_operators(branch.mlp, branch.ls, f"{name}.ffns")])
    return [*_beside(attentions), *_beside(mlps)]


def _beside(branches: Sequence[list[Operator]]) -> list[Operator]:
    """One norm, layer, attention if they have one, and layer, which give the sum of what several such give."""
    kinds = [[type(operator) for operator in branch] for branch in branches]
    if any(kind != kinds[0] or kind[1:] not in ([Factor, Factor], [Factor, Attention, Factor]) for kind in kinds):
        raise NotFusable("its parallel branches are no attentions and MLPs of two layers each")
    norms, firsts, *attentions, lasts = cast("list[list[Any]]", list(zip(*branches, strict=True)))
    weights, biases = list[Any](), list[Any]()
    for norm, first in zip(norms, firsts, strict=True):  # what norms multiply by and add is the layers' now
        weight = only_dense([first]).weight[0]
        weights.append((weight * norm.weight).reshape(3 if attentions else 1, -1, weight.shape[1]))
        biases.append((first.bias + weight @ norm.bias).reshape(len(weights[-1]), -1))
    weight = np.concatenate(weights, 1)
    joined = dense(weight.reshape(-1, weight.shape[2]), np.concatenate(biases, 1).reshape(-1), name=firsts[0].name)
    norm = replace(norms[0], weight=np.ones_like(norms[0].weight), bias=np.zeros_like(norms[0].bias))
    last = np.concatenate([only_dense([layer]).weight[0] for layer in lasts], 1)
    return [
        *(norm, replace(joined, gelu=firsts[0].gelu, silu=firsts[0].silu)),
        *(replace(same[0], heads=sum(attention.heads for attention in same)) for same in attentions),
        dense(last, sum(layer.bias for layer in lasts), name=lasts[0].name, adds=True),
    ]


def _scaling(block: Any, name: str) -> list[Operator]:
    """x + attention(norm(x)) + MLP(norm(x)), of which one layer is the first (ViT-22B, arXiv 2302.05442)."""
    drops, lasts = ("attn_drop", "mlp_drop", "drop_path"), ("attn_out_proj", "mlp_out_proj")
    parts = parts_of(block, "in_norm", "in_proj", "q_norm", "k_norm", *drops, "mlp_act", *lasts, "out_proj", "ls")
    for part in drops:
        check_idle(part, parts[part])
    activation, factor = activation_of(parts["mlp_act"])
    if factor != 1:
        raise NotFusable("its parallel MLP has QuickGELU")
    hidden, joint = int(block.in_split[0]), _dense(block.in_proj)
    bias = torch.zeros(joint.out_features) if joint.bias is None else joint.bias.clone()
    if block.mlp_bias is not None:
        bias[:hidden] += block.mlp_bias.detach()
    if block.out_proj is None:
        behind = [as_linear(parts[last]) for last in lasts]
    else:
        both = _dense(block.out_proj)
        width = both.in_features - hidden
        behind = [Dense(both.weight[:, :width], both.bias), Dense(both.weight[:, width:], None)]
    proj, down = (scaled(layer, block.ls) for layer in behind)
    qkv = linear_of(Dense(joint.weight[hidden:], bias[hidden:]), f"{name}.attn.qkv")
    between, last = attention_chain(block, parts, qkv, linear_of(proj, f"{name}.attn.proj", adds=True))
    at = next(place for place, operator in enumerate(between) if isinstance(operator, Attention))
    norm, up = norm_of(block.in_norm), Dense(joint.weight[:hidden], bias[:hidden])
    mlp = [*linear_of(up, f"{name}.mlp.fc1", **{activation: True}), *linear_of(down, f"{name}.mlp.fc2", adds=True)]
    return [norm, *between[:at], Keep(), norm, *mlp, *between[at:], *last]


def _dense(part: Any) -> Dense:
    """A layer that has to be taken apart.

    Raises:
        NotFusable: it is structured.
    """
    if not isinstance(layer := as_linear(part), Dense):
        raise NotFusable("a layer of its parallel blocks that has to be taken apart is structured")
    return layer


PARALLEL = {
    "timm.models.vision_transformer.ParallelThingsBlock": _things,
    "timm.models.vision_transformer.ParallelScalingBlock": _scaling,
}
"""Operators by the class of the block."""
