"""The reduction cells of ViTAE v1 and v2: pyramid reduction, attention and the parallel convolution branch.

Source: ViTAE (arXiv 2106.03348), section 3.2: a ReductionCell embeds multi-scale context (PRM) and locality (PCM)
while it lowers the resolution; ViTAEv2 (arXiv 2202.10108). State-dict keys are those of the published checkpoints.
"""

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import Mlp, MultiHeadAttention, WindowAttention
from .grid import grid_to_tokens

# Eps of every LayerNorm in a reduction cell; normal cells use 1e-6. Mixing them up moves the logits by 3e-4.
REDUCTION_NORM_EPS = 1e-5

_PCM_STRIDES = {1: (1, 1, 1), 2: (2, 1, 1), 4: (2, 2, 1)}


class PyramidReduction(nn.Module):
    """PRM: one strided convolution and GELU per dilation; the channels are concatenated, those of a dilation together.

    (B, C_in, H, W) -> tokens (B, h*w, len(dilations) * embed_dim), h = H / stride.
    """

    def __init__(self, in_chans: int, embed_dim: int, kernel_size: int, stride: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for dilation in dilations:
            # rounded up, so that h = H / stride for every dilation
            padding = -(-((kernel_size - 1) * dilation + 1 - stride) // 2)
            conv = nn.Conv2d(in_chans, embed_dim, kernel_size, stride, padding, dilation)
            self.convs.append(nn.Sequential(conv, nn.GELU()))

    def forward(self, grid: Tensor) -> Tensor:
        return torch.cat([grid_to_tokens(conv(grid)) for conv in self.convs], dim=2)


class PerformerAttention(nn.Module):
    """Single-head linear attention with positive random features, its value skip and its MLP.

    Source: Performer (arXiv 2009.14794) as T2T-ViT (arXiv 2101.11986, section 3.1) uses it. `w` (m, dim), m = dim/2,
    is random, frozen and part of the checkpoint: never re-initialise it after loading.

    The features exp(w t - |t|^2/2) span many orders of magnitude, so they and the products with them are computed
    in float32 whatever the model's dtype (half precision gives NaN).
    """

    # Added to the denominator as the published model does; it matters only where all features vanish.
    epsilon = 1e-8

    def __init__(self, in_dim: int, dim: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(dim // 2, dim), requires_grad=False)
        self.kqv = nn.Linear(in_dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(in_dim, eps=REDUCTION_NORM_EPS)
        self.norm2 = nn.LayerNorm(dim, eps=REDUCTION_NORM_EPS)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
        nn.init.orthogonal_(self.w, gain=sqrt(dim // 2))

    def features(self, t: Tensor) -> Tensor:
        """phi(t) = exp(w t - |t|^2 / 2) / sqrt(m): (B, N, dim) float32 -> (B, N, m)."""
        w = self.w.float()
        half_square = t.square().sum(dim=-1, keepdim=True) / 2
        return torch.exp(F.linear(t, w) - half_square) / sqrt(w.shape[0])

    def attend(self, tokens: Tensor) -> Tensor:
        """v + proj(linear attention(LN(tokens))): (B, N, in_dim) -> (B, N, dim)."""
        # The split order is k, q, v: not the usual one.
        k, q, v = self.kqv(self.norm1(tokens)).chunk(3, dim=-1)
        with torch.autocast(tokens.device.type, enabled=False):
            phi_k, phi_q, v32 = self.features(k.float()), self.features(q.float()), v.float()
            denominator = phi_q @ phi_k.sum(dim=1).unsqueeze(-1)  # (B, N, 1)
            summary = phi_k.transpose(1, 2) @ v32  # (B, m, dim)
            y = (phi_q @ summary) / (denominator + self.epsilon)
        return v + self.proj(y.to(v.dtype))

    def forward(self, tokens: Tensor, parallel: Tensor | None = None) -> Tensor:
        """tokens (B, N, in_dim) and the convolution branch (B, N, dim), added between attention and MLP."""
        x = self.attend(tokens)
        x = x if parallel is None else x + parallel
        return x + self.mlp(self.norm2(x))


class TokenTransformer(nn.Module):
    """Softmax attention that changes the width of tokens, and an MLP: (B, N, in_dim) -> (B, N, dim).

    The tokens themselves are not added, since their width is another.

    Args:
        attn: attention in_dim -> dim, with or without a value skip.
    """

    def __init__(self, in_dim: int, dim: int, attn: MultiHeadAttention) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(in_dim, eps=REDUCTION_NORM_EPS)
        self.attn = attn
        self.norm2 = nn.LayerNorm(dim, eps=REDUCTION_NORM_EPS)
        self.mlp = Mlp(dim, dim)

    def forward(self, tokens: Tensor, parallel: Tensor | None = None) -> Tensor:
        """tokens (B, N, in_dim) and the convolution branch (B, N, dim), added between attention and MLP."""
        x = self.attn(self.norm1(tokens))
        x = x if parallel is None else x + parallel
        return x + self.mlp(self.norm2(x))


class PatchEmbedding(nn.Module):
    """Non-overlapping convolution, (B, C_in, H, W) -> (B, N, dim)."""

    def __init__(self, in_chans: int, dim: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, dim, patch_size, patch_size)

    def forward(self, grid: Tensor) -> Tensor:
        return grid_to_tokens(self.proj(grid))


def _parallel_branch(
    in_chans: int, embed_dim: int, dim: int, downsample: int, groups: int = 1, *, v1: bool = False
) -> nn.Sequential:
    """PCM of a reduction cell: three 3x3 convolutions, a norm and SiLU behind each but the last.

    In v1 there is no norm behind the first, and SiLU behind the last.
    """
    a, b, c = _PCM_STRIDES[downsample]
    return nn.Sequential(
        nn.Conv2d(in_chans, embed_dim, 3, a, 1, groups=groups),
        *([] if v1 else [nn.BatchNorm2d(embed_dim)]),
        nn.SiLU(),
        nn.Conv2d(embed_dim, embed_dim, 3, b, 1, groups=groups),
        nn.BatchNorm2d(embed_dim),
        nn.SiLU(),
        nn.Conv2d(embed_dim, dim, 3, c, 1, groups=groups),
        *([nn.SiLU()] if v1 else []),
    )


class PerformerReduction(nn.Module):
    """Reduction cell kind `performer`: PRM -> performer attention, plus the parallel PCM branch."""

    def __init__(
        self, in_chans: int, embed_dim: int, dim: int, downsample: int, kernel_size: int, dilations: Sequence[int]
    ) -> None:
        super().__init__()
        if downsample not in _PCM_STRIDES:
            raise ValueError(f"downsample {downsample} of a performer cell: must be one of {sorted(_PCM_STRIDES)}")
        self.PCM = _parallel_branch(in_chans, embed_dim, dim, downsample, v1=True)
        self.PRM = PyramidReduction(in_chans, embed_dim, kernel_size, downsample, dilations)
        self.attn = PerformerAttention(len(dilations) * embed_dim, dim)

    def forward(self, grid: Tensor) -> Tensor:
        return self.attn(self.PRM(grid), grid_to_tokens(self.PCM(grid)))


class TransformerReduction(nn.Module):
    """v2's reduction cells: PRM -> softmax attention, plus the parallel PCM branch.

    Args:
        groups: groups of the branch's convolutions.
        window_size: side of the windows of kind `window`, whose attention has a qkv bias and no value skip. None for
            kind `transformer`, whose attention is over all tokens and has no qkv bias but a value skip.
    """

    def __init__(
        self,
        in_chans: int,
        embed_dim: int,
        dim: int,
        downsample: int,
        kernel_size: int,
        dilations: Sequence[int],
        num_heads: int,
        groups: int,
        window_size: int | None,
    ) -> None:
        super().__init__()
        self.PCM = _parallel_branch(in_chans, embed_dim, dim, downsample, groups)
        self.PRM = PyramidReduction(in_chans, embed_dim, kernel_size, downsample, dilations)
        in_dim = len(dilations) * embed_dim
        attn = (
            MultiHeadAttention(in_dim, dim, num_heads, qkv_bias=False, value_skip=True)
            if window_size is None
            else WindowAttention(in_dim, dim, num_heads, window_size=window_size)
        )
        self.attn = TokenTransformer(in_dim, dim, attn)

    def forward(self, grid: Tensor) -> Tensor:
        return self.attn(self.PRM(grid), grid_to_tokens(self.PCM(grid)))


class PyramidOnlyReduction(nn.Module):
    """Reduction cell kind `performer_less`: the PRM alone."""

    def __init__(
        self, in_chans: int, embed_dim: int, dim: int, downsample: int, kernel_size: int, dilations: Sequence[int]
    ) -> None:
        super().__init__()
        if len(dilations) * embed_dim != dim:
            raise ValueError(
                f"token dim {dim} of a performer_less cell must be {len(dilations)} dilations x embed dim {embed_dim}"
            )
        self.PRM = PyramidReduction(in_chans, embed_dim, kernel_size, downsample, dilations)

    def forward(self, grid: Tensor) -> Tensor:
        return self.PRM(grid)


class EmbeddingReduction(nn.Module):
    """Reduction cell kind `embedding`: ViT's patch embedding with class token and learned positions."""

    def __init__(self, in_chans: int, dim: int, img_size: int, patch_size: int) -> None:
        super().__init__()
        self.img_size = img_size
        self.pos_embed = nn.Parameter(torch.zeros(1, (img_size // patch_size) ** 2 + 1, dim))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.PRM = PatchEmbedding(in_chans, dim, patch_size)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)

    def forward(self, grid: Tensor) -> Tensor:
        if grid.shape[-2:] != (self.img_size, self.img_size):
            raise ValueError(f"image {tuple(grid.shape[-2:])}: this model takes {self.img_size}x{self.img_size} only")
        patches = self.PRM(grid)
        return torch.cat([self.cls_token.expand(patches.shape[0], -1, -1), patches], dim=1) + self.pos_embed
