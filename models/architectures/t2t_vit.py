"""T2T-ViT merges overlapping patches twice behind attention, then runs a narrow, deep transformer with a class token.

Source: T2T-ViT (arXiv 2101.11986). Module names give the published state-dict keys: `tokens_to_token...`,
`blocks.<i>...`, `norm`, `head`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .vitae.attention import Mlp, MultiHeadAttention, init_linear
from .vitae.grid import tokens_to_grid
from .vitae.reduction import PerformerAttention, TokenTransformer

NORM_EPS = 1e-5
TOKEN_DIM = 64
REDUCTION = 16
"""Pixels along an image's side for one token."""

TOKEN_ATTENTIONS = ("performer", "transformer")


class TokensToToken(nn.Module):
    """The T2T module: images (B, in_chans, H, W) -> tokens (B, H/16 * W/16, dim).

    Patches of side 7, 3 and 3 (strides 4, 2, 2) are unfolded one after the other, each into a token of all its pixels,
    with attention after the first two.
    """

    def __init__(self, in_chans: int, dim: int, attention: str, token_dim: int) -> None:
        super().__init__()
        self.attention1 = _token_attention(attention, in_chans * 7 * 7, token_dim)
        self.attention2 = _token_attention(attention, token_dim * 3 * 3, token_dim)
        self.project = nn.Linear(token_dim * 3 * 3, dim)

    def forward(self, images: Tensor) -> Tensor:
        x = self.attention1(_unfolded(images, 7, 4, 2))
        x = self.attention2(_unfolded(tokens_to_grid(x), 3, 2, 1))
        return self.project(_unfolded(tokens_to_grid(x), 3, 2, 1))


class Block(nn.Module):
    """Transformer block: x + attn(norm1(x)), then x + mlp(norm2(x)); qkv has no bias."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.attn = MultiHeadAttention(dim, dim, num_heads, qkv_bias=False)
        self.norm2 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class T2TViT(nn.Module):
    """T2T-ViT classifier: normalised images (B, in_chans, S, S), S = img_size -> logits (B, num_classes).

    Args:
        img_size: side in pixels, a multiple of 16; it decides the shape of `pos_embed`, a frozen sinusoid.
        attention: attention of the T2T module: `performer`, or `transformer` (the models with `t_` in their names).

    Raises:
        ValueError: another size or kind of attention, or widths that do not divide.
    """

    def __init__(
        self,
        *,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int = 224,
        embed_dim: int,
        depth: int,
        num_heads: int,
        mlp_ratio: float,
        attention: str = "performer",
        token_dim: int = TOKEN_DIM,
    ) -> None:
        super().__init__()
        if img_size < REDUCTION or img_size % REDUCTION:
            raise ValueError(f"img_size {img_size}: T2T-ViT takes multiples of {REDUCTION}")
        self.img_size = img_size
        count = (img_size // REDUCTION) ** 2 + 1
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.empty(1, count, embed_dim), requires_grad=False)
        with torch.no_grad():
            self.pos_embed.copy_(sinusoid(count, embed_dim))
        self.tokens_to_token = TokensToToken(in_chans, embed_dim, attention, token_dim)
        self.blocks = nn.Sequential(*(Block(embed_dim, num_heads, mlp_ratio) for _ in range(depth)))
        self.norm = nn.LayerNorm(embed_dim, eps=NORM_EPS)
        self.head = nn.Linear(embed_dim, num_classes)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.apply(init_linear)

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, in_chans, S, S) -> the class token's features (B, embed_dim)."""
        if images.shape[-2:] != (self.img_size, self.img_size):
            size = tuple(images.shape[-2:])
            raise ValueError(f"image {size}: this model takes {self.img_size}x{self.img_size} only")
        x = self.tokens_to_token(images)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        return self.norm(self.blocks(x))[:, 0]

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.forward_features(images))


def sinusoid(count: int, dim: int) -> Tensor:
    """Fixed position embedding: sine (even j) or cosine (odd j) of position / 10000^(2 floor(j/2) / dim).

    Source: Attention Is All You Need (arXiv 1706.03762), section 3.5. Float32 (1, count, dim) on the CPU.
    """
    # The device is given, since models are also built with meta as the default device.
    positions = torch.arange(count, dtype=torch.float64, device="cpu")[:, None]
    j = torch.arange(dim, device="cpu")
    angles = positions / 10000 ** (2 * (j // 2) / dim)
    return torch.where(j % 2 == 0, angles.sin(), angles.cos())[None].float()


def _token_attention(kind: str, in_dim: int, token_dim: int) -> nn.Module:
    if kind == "performer":
        return PerformerAttention(in_dim, token_dim)
    if kind == "transformer":
        # The published models scale by the input's width, not by that of a head.
        attn = MultiHeadAttention(in_dim, token_dim, 1, qkv_bias=False, scale=in_dim**-0.5, value_skip=True)
        return TokenTransformer(in_dim, token_dim, attn)
    raise ValueError(f"unknown token attention {kind!r}: must be one of {', '.join(TOKEN_ATTENTIONS)}")


def _unfolded(grid: Tensor, kernel_size: int, stride: int, padding: int) -> Tensor:
    """(B, C, H, W) -> overlapping patches as tokens (B, N, C * kernel_size^2), pixels of a channel together."""
    return F.unfold(grid, kernel_size, padding=padding, stride=stride).transpose(1, 2)


def _variant(embed_dim: int, depth: int, num_heads: int, mlp_ratio: float) -> dict[str, Any]:
    return {"embed_dim": embed_dim, "depth": depth, "num_heads": num_heads, "mlp_ratio": mlp_ratio}


T2T_VARIANTS: dict[str, dict[str, Any]] = {
    "t2t_vit_7": _variant(256, 7, 4, 2),
    "t2t_vit_10": _variant(256, 10, 4, 2),
    "t2t_vit_12": _variant(256, 12, 4, 2),
    "t2t_vit_14": _variant(384, 14, 6, 3),
    "t2t_vit_19": _variant(448, 19, 7, 3),
    "t2t_vit_24": _variant(512, 24, 8, 3),
    "t2t_vit_t_14": {**_variant(384, 14, 6, 3), "attention": "transformer"},
}
"""The published configurations, as keyword arguments of `T2TViT`."""
