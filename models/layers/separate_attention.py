"""SeparateAttention is self-attention with a linear layer each for queries, keys and values."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class SeparateAttention(nn.Module):
    """timm's Attention with `q_proj`, `k_proj`, `v_proj` in place of `qkv`: (B, N, C) -> (B, N, C).

    HazyResearch/fly uses it where these layers are structured: one Monarch matrix for all three is another function.

    Args:
        packed: timm's Attention, whose other parts are taken over.
    """

    def __init__(self, packed: nn.Module) -> None:
        super().__init__()
        # Any, since only architectures/timm_models imports timm.
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
    """Replace every attention of a timm ViT by a SeparateAttention.

    Raises:
        ValueError: the model has no such attention.
    """
    blocks = [block for block in model.modules() if type(getattr(block, "attn", None)).__name__ == "Attention"]
    if not blocks:
        raise ValueError("separate_qkv true: this architecture has no attention with a qkv layer")
    for block in blocks:
        block.attn = SeparateAttention(block.get_submodule("attn"))


def _projection(dim: int, out_features: int, bias: bool) -> nn.Linear:
    """A linear layer, initialised as timm's ViT initialises it."""
    layer = nn.Linear(dim, out_features, bias=bias)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
