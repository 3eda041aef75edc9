"""SeparateAttention: self-attention with a linear layer each for queries, keys and values."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class SeparateAttention(nn.Module):
    """What timm's Attention computes, (B, N, C) -> (B, N, C), with `q_proj`, `k_proj`, `v_proj` in place of `qkv`.

    HazyResearch/fly has it where those layers are structured: one Monarch matrix for all three would be another model.

    Args:
        packed: the attention to take the place of; its other parts are kept.
    """

    def __init__(self, packed: nn.Module) -> None:
        super().__init__()
        # Any: parts of a class that only timm_door imports.
        parts: Any = packed
        dim, bias = parts.qkv.in_features, parts.qkv.bias is not None
        self.num_heads, self.head_dim = int(parts.num_heads), int(parts.head_dim)
        self.q_proj, self.k_proj, self.v_proj = (_projection(dim, parts.qkv.out_features // 3, bias) for _ in range(3))
        self.q_norm, self.k_norm = parts.q_norm, parts.k_norm
        self.attn_drop, self.proj, self.proj_drop = parts.attn_drop, parts.proj, parts.proj_drop

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        dropout = self.attn_drop.p if self.training else 0.0
        y = F.scaled_dot_product_attention(
            self.q_norm(q), self.k_norm(k), v, attn_mask=attn_mask, dropout_p=dropout, is_causal=is_causal
        )
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))


def separate_attention(model: nn.Module) -> None:
    """Put a SeparateAttention in the place of every attention of a ViT of timm.

    Raises:
        ValueError: it has none.
    """
    blocks = [block for block in model.modules() if type(getattr(block, "attn", None)).__name__ == "Attention"]
    if not blocks:
        raise ValueError("separate_qkv true: this architecture has no attention with a qkv layer")
    for block in blocks:
        block.attn = SeparateAttention(block.get_submodule("attn"))


def _projection(dim: int, out_features: int, bias: bool) -> nn.Linear:
    """Initialised as timm's ViT does."""
    layer = nn.Linear(dim, out_features, bias=bias)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
