"""Makes a model compute fewer tokens: similar ones merged, the last block for the class token alone.

Names of parameters stay, so that the weights of the plain model fit, dense or structured. Only blocks that compute
something else are replaced: those before the first merge keep their own forward.
"""

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from ...kernels.triton.token_merging import log_sizes, merge_by_keys, unmerged
from ..layers.narrow_attention import NarrowAttention, split_heads
from ..layers.separate_attention import SeparateAttention
from ..layers.token_plan import ALL_TOKENS, TokenMerging, TokenPlan
from .t2t_vit import Block, T2TViT
from .timm_models import type_name
from .token_avg_head import TokenAvgHead
from .vitae import ViTAE, ViTAEv2
from .vitae.attention import MultiHeadAttention, attend
from .vitae.merging import MergingCell, attending_cells, merge_in_cells

# By name, not by class: only timm_models imports timm.
_TIMM_VIT = "timm.models.vision_transformer.VisionTransformer"
_TIMM_DISTILLED = "timm.models.deit.VisionTransformerDistilled"
BLOCKS = ("timm.models.vision_transformer.Block", type_name(Block))
"""Full names of the types of blocks that have rules: x + attn(norm1(x)), then x + mlp(norm2(x))."""

_BLOCK_PARTS = {"norm1", "attn", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2"}
_ATTENTIONS = (
    # The class's place in current and older versions of timm.
    *("timm.layers.attention.Attention", "timm.models.vision_transformer.Attention"),
    *(type_name(SeparateAttention), type_name(NarrowAttention), type_name(MultiHeadAttention)),
)
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_ATTENTION_PARTS = {"qkv", *_PROJECTIONS, "q_norm", "k_norm", "attn_drop", "norm", "proj", "proj_drop"}


class TokenAttention(nn.Module):
    """Self-attention that knows how many patches each token stands for.

    Args:
        attn: timm's attention or our own, whose parts it takes over.
        read: number of tokens whose outputs are computed, from the first on; None for all.

    Raises:
        ValueError: an attention of another type, or with a part that this one has not.
    """

    qkv: nn.Module
    q_norm: nn.Module
    k_norm: nn.Module
    norm: nn.Module
    proj: nn.Module
    proj_drop: nn.Module

    def __init__(self, attn: nn.Module, read: int | None) -> None:
        super().__init__()
        _take_over(self, attn, _ATTENTIONS, _ATTENTION_PARTS)
        parts: Any = attn
        self.num_heads, self.read, self._scale = int(parts.num_heads), read, getattr(attn, "scale", None)
        self.qk_dim = attn.qk_dim if isinstance(attn, NarrowAttention) else None

    def forward(self, x: Tensor, size: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs (B, R, C), queries and keys (B, heads, N, head_dim) of tokens (B, N, C) and sizes (B, N, 1)."""
        q, k, v = self._heads(x)
        dropout = float(getattr(self.attn_drop, "p", 0)) if self.training else 0.0
        scale = self._scale or q.shape[-1] ** -0.5
        asked = q if self.read is None else q.narrow(2, 0, self.read)
        y = attend(asked, k, v, scale, None if size is None else log_sizes(size, q), dropout)
        return self.proj_drop(self.proj(self.norm(y.transpose(1, 2).flatten(2)))), q * scale, k

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = self._modules
        if self.qk_dim is not None:
            q, k, v = split_heads(self.qkv(x), self.num_heads, self.qk_dim)
        elif "qkv" in parts:
            q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            split = (self.num_heads, -1)
            q, k, v = (cast(nn.Module, parts[name])(x).unflatten(-1, split).transpose(1, 2) for name in _PROJECTIONS)
        return self.q_norm(q), self.k_norm(k), v

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, read={self.read}"


class TokenBlock(nn.Module):
    """A transformer block that knows the sizes of its tokens, and may merge some between attention and MLP.

    Args:
        block: timm's ViT block or T2T-ViT's, whose parts it takes over.
        prefix: tokens in front that never merge.
        merging: how tokens merge here; None where they do not.
        read: number of tokens that are computed from the attention on; None for all.

    Raises:
        ValueError: a block of another type.
    """

    knows_sizes = True
    """It takes tokens and sizes, as the blocks of serving do that compute the same."""

    norm1: nn.Module
    ls1: nn.Module
    drop_path1: nn.Module
    norm2: nn.Module
    mlp: nn.Module
    ls2: nn.Module
    drop_path2: nn.Module

    def __init__(self, block: nn.Module, prefix: int, merging: TokenMerging | None, read: int | None) -> None:
        super().__init__()
        _take_over(self, block, BLOCKS, _BLOCK_PARTS)
        self.attn = TokenAttention(self.get_submodule("attn"), read)
        self.prefix, self.merging, self.read = prefix, merging, read

    def forward(self, x: Tensor, size: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Tokens (B, N, C) and their sizes (B, N, 1), None while all are 1, to those that are left."""
        y, q, k = self.attn(self.norm1(x), size)
        x = (x if self.read is None else x.narrow(1, 0, self.read)) + self.drop_path1(self.ls1(y))
        patches = int(x.shape[1]) - self.prefix
        count = 0 if self.merging is None else self.merging.count(patches)
        if self.merging is not None and count:
            x, size = merge_by_keys(x, q, k, size, count, self.prefix, self.merging.protect)
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x)))), size

    def extra_repr(self) -> str:
        return f"prefix={self.prefix}, merging={self.merging}, read={self.read}"


class TokenBlocks(nn.Sequential):
    """The blocks of a model, the later ones TokenBlocks: tokens (B, N, C) -> those that are left.

    Args:
        unmerges: whether merged tokens are repeated by their sizes behind the blocks, for a head that pools patches.
    """

    def __init__(self, blocks: nn.Sequential, plan: TokenPlan, *, unmerges: bool) -> None:
        super().__init__(*blocks)
        self.plan, self.unmerges = plan, unmerges

    def forward(self, x: Tensor) -> Tensor:
        size: Tensor | None = None
        tokens = int(x.shape[1])
        for block in self:
            if getattr(block, "knows_sizes", False):
                x, size = block(x, size)
            else:
                x = block(x)
        return unmerged(x, size, tokens) if self.unmerges and size is not None else x

    def extra_repr(self) -> str:
        return f"plan={self.plan}"


@dataclass(frozen=True)
class _Reading:
    """How a head reads the tokens of the last block.

    Args:
        prefix: tokens in front of those of the patches: class token, distillation token, registers.
        read: how many of them the head reads, from the first on.
        pooling: the pooling of the patches, as in an error message; None where the head reads none.
        restored: each block gives all tokens back, so the last may merge too.
    """

    prefix: int
    read: int
    pooling: str | None = None
    restored: bool = False


def apply_token_plan(model: nn.Module, plan: TokenPlan) -> nn.Module:
    """Make a model compute the tokens of a plan, in place; returns the model. Its state dict stays as it is.

    Raises:
        ValueError: the plan does not fit the model, or the model has one already.
    """
    if not plan:
        return model
    parts: Any = model
    try:
        reading = _reading(parts)
        if token_plan_of(model):
            raise ValueError("the model has a plan already")
        _check(plan, reading, token_depth(model))
        if isinstance(model, ViTAE | ViTAEv2):
            merge_in_cells(model, plan)
        else:
            parts.blocks = _replaced(parts.blocks, plan, reading)
    except ValueError as error:
        raise ValueError(f"tokens of {type(model).__name__}: {error}") from None
    return model


def token_plan_of(model: nn.Module) -> TokenPlan:
    """The plan that was applied to a model."""
    parts = (part for part in model.modules() if isinstance(part, TokenBlocks | MergingCell))
    return next((part.plan for part in parts), ALL_TOKENS)


def has_token_rules(model: nn.Module) -> bool:
    """Whether there are plans for models of this type; a plan may still not fit one of them."""
    return isinstance(model, ViTAE | ViTAEv2 | T2TViT) or type_name(model) in (_TIMM_VIT, _TIMM_DISTILLED)


def reads_class_token(model: Any) -> bool:
    """Whether the head reads a class token, so that plans can protect what this attends to; False without rules."""
    return has_token_rules(model) and _reading(model).read > 0


def token_depth(model: Any) -> int:
    """The number of blocks that a plan counts: of a ViTAE its normal cells with attention over all tokens."""
    return len(attending_cells(model) if isinstance(model, ViTAE | ViTAEv2) else getattr(model, "blocks", ()))


def _replaced(blocks: nn.Sequential, plan: TokenPlan, reading: _Reading) -> TokenBlocks:
    """The blocks with those that compute fewer tokens, or come after a merge, as TokenBlocks."""
    merging, last = plan.merging, len(blocks) - 1
    merges = merging.blocks(len(blocks)) if merging else range(0)
    wrapped = TokenBlocks(blocks, plan, unmerges=reading.pooling is not None)
    for i in range(merges.start if merges else last, len(blocks)):
        read = reading.read if plan.class_last and i == last else None
        wrapped[i] = TokenBlock(blocks[i], reading.prefix, merging if i in merges else None, read)
    return wrapped


def _reading(model: Any) -> _Reading:
    kind = type_name(model)
    if isinstance(model, ViTAE | ViTAEv2):
        return _Reading(0, 0, "avg", restored=True)
    if isinstance(model, T2TViT):
        return _Reading(1, 1)
    if kind == _TIMM_DISTILLED:
        return _Reading(model.num_prefix_tokens, 2)
    if kind != _TIMM_VIT:
        raise ValueError("there are rules for timm's VisionTransformer (ViT, DeiT) and T2T-ViT only")
    prefix = int(model.num_prefix_tokens)
    if model.attn_pool is not None:
        return _Reading(prefix, 0, "attention")
    if isinstance(model.head, TokenAvgHead):
        return _Reading(prefix, 1, "token and avg")
    return _Reading(prefix, 1) if model.global_pool == "token" else _Reading(prefix, 0, model.global_pool)


def _check(plan: TokenPlan, reading: _Reading, depth: int) -> None:
    if plan.class_last and reading.pooling is not None:
        raise ValueError(f"class_last: its head reads the patch tokens ({reading.pooling} pooling)")
    if plan.merging is None:
        return
    if reading.pooling == "":
        raise ValueError("merging: without a pooling its answer has the patches in their places, which merging changes")
    if plan.merging.start >= (depth if reading.restored else depth - 1):
        limit = (
            f"{depth}, its cells that attend to all"
            if reading.restored
            else f"{depth - 1}: the last block never merges"
        )
        raise ValueError(f"merging: start {plan.merging.start} must be below {limit}")
    if plan.merging.protect and not reading.read:
        raise ValueError(f"merging: protect {plan.merging.protect:g} needs a class token that the head reads")


def _take_over(module: nn.Module, source: nn.Module, types: tuple[str, ...], parts: set[str]) -> None:
    """Give a module the parts of another; those that are missing do nothing.

    Raises:
        ValueError: the other is of a type that is not among `types`, or has a part that is not among `parts`.
    """
    children = dict(source.named_children())
    if type_name(source) not in types or not children.keys() <= parts:
        raise ValueError(f"there is no rule for its {type(source).__name__}")
    for name, child in children.items():
        module.add_module(name, child)
    for name in sorted(parts - children.keys() - {"qkv", *_PROJECTIONS}):
        module.add_module(name, nn.Identity())
