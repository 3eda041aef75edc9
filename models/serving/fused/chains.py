"""Takes a transformer block apart into the chains that the kernels run, or says why it cannot.

RULES has one rule a block type: to fuse another family, add a line.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ....kernels.chain_ir import Add, BlockDiagonal, Dense, Gelu, LayerNorm, Linear, Monarch, SelfAttention
from ....kernels.tuning.chain import Chain
from ...architectures.plain_mlp import PLAIN_MLPS
from ...architectures.t2t_vit import Block
from ...architectures.timm_models import type_name
from ...architectures.token_blocks import TokenAttention, TokenBlock
from ...architectures.vitae.attention import MultiHeadAttention
from ...architectures.vitae.merging import MergingCell
from ...architectures.vitae.normal import NormalCell
from ...layers.blockdiag import BlockdiagLinear, shuffled
from ...layers.narrow_attention import NarrowAttention
from ...layers.structured import StructuredLinear


class NotFusable(Exception):
    """A block cannot be taken apart, and keeps its own forward; the message says why in a few words."""


@dataclass(frozen=True)
class BlockChains:
    """The chains of a block that computes y = attention(x) + r, then y + mlp(y).

    Args:
        attention: norm, qkv, attention, proj, add.
        mlp: norm, fc1, GELU, fc2, add.
        cell: the ViTAE cell with the convolution branch of r = x + branch(x); None where r = x.
    """

    attention: Chain
    mlp: Chain
    cell: NormalCell | None = None


Rule = Callable[[nn.Module], BlockChains]


def take_apart(block: nn.Module) -> BlockChains | None:
    """The chains of a block, whichever of its tokens it merges or computes; None for a module that looks like no block.

    Raises:
        NotFusable: the block's type is unknown, or a chain cannot hold one of its parts.
    """
    rule = RULES.get(type_name(block))
    if rule is not None:
        return rule(block)
    if {"norm1", "attn", "mlp"} <= dict(block.named_children()).keys():
        raise NotFusable("there is no rule for blocks of this type")
    return None


def _vit_block(block: Any) -> BlockChains:
    """timm's ViT block: x + ls1(attn(norm1(x))), then x + ls2(mlp(norm2(x)))."""
    parts = parts_of(block, "norm1", "attn", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2")
    for name in ("drop_path1", "drop_path2"):
        check_idle(name, parts[name])
    return BlockChains(
        Chain([as_norm(parts["norm1"]), *_timm_attention(block.attn, parts["ls1"]), Add()]),
        Chain([as_norm(parts["norm2"]), *_timm_mlp(block.mlp, parts["ls2"]), Add()]),
    )


def _timm_attention(attn: nn.Module, scale: nn.Module | None) -> list[Linear | SelfAttention]:
    if type_name(attn) not in TIMM_ATTENTIONS:
        raise NotFusable(f"there is no rule for attention of type {type(attn).__name__}")
    parts = parts_of(attn, "qkv", "proj", "q_norm", "k_norm", "attn_drop", "proj_drop", "norm", "gate")
    for name in ("q_norm", "k_norm", "attn_drop", "proj_drop", "norm", "gate"):
        check_idle(f"attn.{name}", parts[name])
    qkv, heads = as_linear(parts["qkv"]), int(getattr(attn, "num_heads", 0))
    if not heads or qkv.out_features % (3 * heads):
        raise NotFusable(f"attention of {heads} heads on a qkv of {qkv.out_features}")
    head_dim = qkv.out_features // (3 * heads)
    return [qkv, SelfAttention(heads, head_dim, head_dim**-0.5), scaled(as_linear(parts["proj"]), scale)]


def _timm_mlp(mlp: nn.Module, scale: nn.Module | None) -> list[Linear | Gelu]:
    if type_name(mlp) not in PLAIN_MLPS:
        raise NotFusable(f"there is no rule for an MLP of type {type(mlp).__name__}")
    parts = parts_of(mlp, "fc1", "act", "fc2", "drop", "drop1", "drop2", "norm")
    for name in ("drop", "drop1", "drop2", "norm"):
        check_idle(f"mlp.{name}", parts[name])
    return [as_linear(parts["fc1"]), _gelu(parts["act"]), scaled(as_linear(parts["fc2"]), scale)]


def _own_block(block: nn.Module) -> BlockChains:
    """x + attn(norm1(x)), then x + mlp(norm2(x)); in ViTAE's normal cell the first sum also has branch(x)."""
    assert isinstance(block, NormalCell | Block)
    attn, mlp = block.attn, block.mlp
    if isinstance(attn, NarrowAttention):
        raise NotFusable("its queries and keys are narrower than its values")
    if type(attn) is not MultiHeadAttention:
        raise NotFusable("its attention is within windows")
    qkv = as_linear(attn.qkv)
    head_dim = qkv.out_features // (3 * attn.num_heads)
    attention = SelfAttention(attn.num_heads, head_dim, head_dim**-0.5)
    return BlockChains(
        Chain([as_norm(block.norm1), qkv, attention, as_linear(attn.proj), Add()]),
        Chain([as_norm(block.norm2), as_linear(mlp.fc1), _gelu(mlp.act), as_linear(mlp.fc2), Add()]),
        block if isinstance(block, NormalCell) else None,
    )


# The class's place in current and older versions of timm.
TIMM_ATTENTIONS = (
    *("timm.layers.attention.Attention", "timm.models.vision_transformer.Attention"),
    type_name(TokenAttention),
)

RULES: Mapping[str, Rule] = {
    # By name, not by class: only architectures/timm_models imports timm.
    "timm.models.vision_transformer.Block": _vit_block,
    type_name(TokenBlock): _vit_block,
    **{type_name(block): _own_block for block in (NormalCell, MergingCell, Block)},
}


def parts_of(module: nn.Module, *names: str) -> dict[str, nn.Module | None]:
    """Return a module's children by the names that a rule knows; None for those it has not.

    Raises:
        NotFusable: the module has another child.
    """
    children = dict(module.named_children())
    if unknown := sorted(children.keys() - set(names)):
        raise NotFusable(f"{type(module).__name__} has a part {unknown[0]!r} that no chain holds")
    return {name: children.get(name) for name in names}


def check_idle(name: str, part: nn.Module | None) -> None:
    """Raise NotFusable where a part does something in evaluation."""
    if part is None or isinstance(part, nn.Identity | nn.Dropout) or type(part).__name__ == "DropPath":
        return
    raise NotFusable(f"{name} is a {type(part).__name__}")


def as_norm(part: nn.Module | None) -> LayerNorm:
    """A norm of torch as the kernels take it.

    Raises:
        NotFusable: it is another norm.
    """
    # timm's LayerNorm is a subclass that computes the same; its other norms (RmsNorm) do not.
    if not isinstance(part, nn.LayerNorm) or type(part).__name__ != "LayerNorm":
        raise NotFusable(f"a norm is a {type(part).__name__}")
    if part.weight is None or part.bias is None or len(part.normalized_shape) != 1:
        raise NotFusable("a LayerNorm without weight or bias, or over several dimensions")
    return LayerNorm(part.weight.detach(), part.bias.detach(), part.eps)


def _gelu(part: nn.Module | None) -> Gelu:
    if not isinstance(part, nn.GELU) or part.approximate != "none":
        raise NotFusable(f"the MLP's activation is {part}, not the exact GELU")
    return Gelu()


def as_linear(part: nn.Module | None) -> Linear:
    """A linear layer of torch, dense or structured, as the kernels take it.

    Raises:
        NotFusable: it is another layer.
    """
    factors = part.monarch_factors() if isinstance(part, StructuredLinear) else None
    if factors is not None:
        assert isinstance(part, StructuredLinear)
        w1, w2 = (factor.detach() for factor in factors)
        bias = None if part.bias is None else part.bias.detach()
        return Monarch(w1, w2, bias, part.in_features, part.out_features)
    if isinstance(part, BlockdiagLinear):
        return _block_diagonal(part)
    if type(part) is nn.Linear:
        return Dense(part.weight.detach(), None if part.bias is None else part.bias.detach())
    raise NotFusable(f"a linear layer is a {type(part).__name__}")


def _block_diagonal(part: BlockdiagLinear) -> BlockDiagonal:
    blocks, outputs, inputs = part.weight.shape
    if (blocks * inputs, blocks * outputs) != (part.in_features, part.out_features):
        raise NotFusable(f"{blocks} blocks do not divide the widths of a block-diagonal layer")
    channels = torch.arange(part.in_features)
    channels = shuffled(channels, blocks) if part.shuffle else channels
    bias = None if part.bias is None else part.bias.detach()
    return BlockDiagonal(part.weight.detach(), channels.view(blocks, inputs), bias)


def scaled(layer: Linear, scale: nn.Module | Tensor | None) -> Linear:
    """Return the layer with a following LayerScale folded in: y * gamma scales the rows of the weight."""
    gamma = scale if isinstance(scale, Tensor) else getattr(scale, "gamma", None)
    if not isinstance(gamma, Tensor) or not (gamma is scale or type(scale).__name__ == "LayerScale"):
        check_idle("layer scale", scale if isinstance(scale, nn.Module) else None)
        return layer
    return times(layer, gamma.detach())


def times(layer: Linear, gamma: Tensor, *, bias: bool = True) -> Linear:
    """Return the layer whose outputs are multiplied by gamma, their bias only where `bias` says so."""
    shift = layer.bias * gamma if bias and layer.bias is not None else layer.bias
    if isinstance(layer, Dense):
        return Dense(layer.weight * gamma[:, None], shift)
    if isinstance(layer, BlockDiagonal):
        return BlockDiagonal(layer.weight * gamma.view(*layer.weight.shape[:2], 1), layer.inputs, shift)
    shape = layer.shape
    padded = torch.ones(shape.out_extended, dtype=gamma.dtype, device=gamma.device)
    padded[: len(gamma)] = gamma
    rows = padded.view(shape.s, shape.J).t()  # output u*J + j is row u of block j
    return Monarch(layer.w1, layer.w2 * rows[:, :, None], shift, layer.in_features, layer.out_features)
