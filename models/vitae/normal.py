"""ViTAE's normal cell: attention and a grouped-convolution branch in parallel, then an MLP.

Source: ViTAE (arXiv 2106.03348), section 3.3. Both branches read the same un-normalised tokens; attention
normalises them itself. State-dict keys are those of the published checkpoints.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .grid import grid_to_tokens, tokens_to_grid

# Normal cells and the final norm; reduction cells use 1e-5.
NORMAL_NORM_EPS = 1e-6


class Attention(nn.Module):
    """Multi-head softmax attention, packed qkv (order q, k, v; then heads; then head dim), scale head_dim^-0.5."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"token dim {dim} is not divisible by num_heads {num_heads}")
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, count, dim = x.shape
        qkv = self.qkv(x).view(batch, count, 3, self.num_heads, dim // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, heads, N, head_dim)
        return self.proj(_attend(q, k, v).transpose(1, 2).reshape(batch, count, dim))


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention of (B, heads, N, head_dim)."""
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and torch.is_grad_enabled():
        # For narrow heads PyTorch's CPU backward takes four times as long in bfloat16 as in float32.
        with torch.autocast("cpu", enabled=False):  # which would cast them back
            return F.scaled_dot_product_attention(q.float(), k.float(), v.float()).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v)


class Mlp(nn.Module):
    """fc2(GELU(fc1(x))), exact erf GELU; keys `fc1`, `fc2` as in timm."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


def _parallel_branch(dim: int, hidden_dim: int, groups: int, shallow: bool) -> nn.Sequential:
    """PCM of a normal cell: grouped 3x3 convolutions dim -> hidden -> dim, and once more unless `shallow`."""
    layers: list[nn.Module] = [
        nn.Conv2d(dim, hidden_dim, 3, 1, 1, groups=groups),
        nn.BatchNorm2d(hidden_dim),
        nn.SiLU(),
        nn.Conv2d(hidden_dim, dim, 3, 1, 1, groups=groups),
    ]
    if not shallow:
        layers += [nn.BatchNorm2d(dim), nn.SiLU(), nn.Conv2d(dim, dim, 3, 1, 1, groups=groups), nn.SiLU()]
    return nn.Sequential(*layers)


class NormalCell(nn.Module):
    """x + Attn(LN(x)) + PCM(x), then x + MLP(LN(x)); tokens (B, N, dim) in and out.

    Args:
        groups: groups of the branch's convolutions.
        shallow: the branch of kind `transformer_shallow` (Base and larger).
        class_token: the first token is the class token; the branch leaves it alone.
    """

    def __init__(
        self, dim: int, num_heads: int, mlp_ratio: float, groups: int, *, shallow: bool, class_token: bool
    ) -> None:
        super().__init__()
        hidden_dim = int(dim * mlp_ratio)
        self.class_token = class_token
        self.norm1 = nn.LayerNorm(dim, eps=NORMAL_NORM_EPS)
        self.attn = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, eps=NORMAL_NORM_EPS)
        self.mlp = Mlp(dim, hidden_dim)
        self.PCM = _parallel_branch(dim, hidden_dim, groups, shallow)

    def _branch(self, x: Tensor) -> Tensor:
        """PCM over the patch tokens, zero for the class token."""
        if not self.class_token:
            return grid_to_tokens(self.PCM(tokens_to_grid(x)))
        patches = grid_to_tokens(self.PCM(tokens_to_grid(x[:, 1:].contiguous())))
        return F.pad(patches, (0, 0, 1, 0))

    def forward(self, x: Tensor) -> Tensor:
        branch = self._branch(x)
        x = x + self.attn(self.norm1(x)) + branch
        return x + self.mlp(self.norm2(x))
