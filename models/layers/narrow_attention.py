"""NarrowAttention is self-attention whose queries and keys are narrower than its values."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class NarrowAttention(nn.Module):
    """Multi-head softmax attention, (B, N, C) -> (B, N, C), with heads of `qk_dim` for queries and keys.

    Its parts have the names of timm's Attention, and outputs of `qkv` are ordered by q, k, v, then by head. Products
    of queries and keys are scaled by qk_dim^-0.5.

    Args:
        attn: timm's Attention or our own, whose parts it takes over; `qkv` is freshly initialised.
    """

    def __init__(self, attn: nn.Module, qk_dim: int) -> None:
        super().__init__()
        # Any, since only architectures/timm_models imports timm.
        parts: Any = attn
        weight = parts.qkv.weight
        self.num_heads, self.qk_dim = int(parts.num_heads), qk_dim
        self.qkv = nn.Linear(
            parts.qkv.in_features,
            2 * self.num_heads * qk_dim + parts.qkv.out_features // 3,
            bias=parts.qkv.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
        ).requires_grad_(weight.requires_grad)
        self.attn_drop, self.proj, self.proj_drop = (
            getattr(attn, name, None) or nn.Identity() for name in ("attn_drop", "proj", "proj_drop")
        )

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        q, k, v = split_heads(self.qkv(x), self.num_heads, self.qk_dim)
        dropout = float(getattr(self.attn_drop, "p", 0)) if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout, is_causal=is_causal)
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, qk_dim={self.qk_dim}"


def split_heads(qkv: Tensor, num_heads: int, qk_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys (B, heads, N, qk_dim) and values (B, heads, N, head_dim) of packed outputs (B, N, all)."""
    narrow = num_heads * qk_dim
    parts = qkv.split([narrow, narrow, qkv.shape[-1] - 2 * narrow], dim=-1)
    q, k, v = (part.unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in parts)
    return q, k, v
