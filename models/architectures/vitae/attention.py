"""Softmax attention over all tokens or in windows, and the MLP: parts that ViTAE v1, ViTAEv2 and T2T-ViT share."""

from math import isqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MultiHeadAttention(nn.Module):
    """Multi-head softmax attention: (B, N, in_dim) -> (B, N, dim). Outputs of qkv are ordered by q, k, v, then by head.

    Args:
        scale: scale of the products q k; head_dim^-0.5 when None.
        value_skip: add v to the output. Where in_dim is not dim, the tokens themselves cannot be added.

    Raises:
        ValueError: dim is not divisible by num_heads.
    """

    def __init__(
        self,
        in_dim: int,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        scale: float | None = None,
        value_skip: bool = False,
    ) -> None:
        super().__init__()
        if not num_heads or dim % num_heads:
            raise ValueError(f"token dim {dim} is not divisible by num_heads {num_heads}")
        self.dim = dim
        self.num_heads = num_heads
        self.scale = scale
        self.value_skip = value_skip
        self.qkv = nn.Linear(in_dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.masked(x, None)

    def masked(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The outputs with `mask` added to the scores of the products q k."""
        batch, count, _ = x.shape
        qkv = self.qkv(x).view(batch, count, 3, self.num_heads, self.dim // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, heads, N, head_dim)
        y = self.proj(attend(q, k, v, self.scale, mask).transpose(1, 2).reshape(batch, count, self.dim))
        return qkv[:, :, 2].flatten(2) + y if self.value_skip else y


class WindowAttention(MultiHeadAttention):
    """Attention within windows of the square grid that the tokens form: (B, N, in_dim) -> (B, N, dim).

    A grid whose side the window does not divide is padded with zeros, half of them (rounded down) above and to the
    left. Padding is a key like any other token: there is no mask, and windows are not shifted.

    The published files hold indices of relative positions, which the models never read; here they are a buffer.
    """

    relative_position_index: Tensor

    def __init__(self, in_dim: int, dim: int, num_heads: int, *, window_size: int = 7) -> None:
        super().__init__(in_dim, dim, num_heads)
        self.window_size = window_size
        self.register_buffer("relative_position_index", _relative_position_index(window_size))

    def forward(self, x: Tensor) -> Tensor:
        batch, count, in_dim = x.shape
        side, window = isqrt(count), self.window_size
        if side * side != count:
            raise ValueError(f"{count} tokens do not form a square grid: ViTAEv2 takes square images only")
        padding = -side % window
        before, after, windows = padding // 2, padding - padding // 2, (side + padding) // window
        grid = F.pad(x.view(batch, side, side, in_dim), (0, 0, before, after, before, after))
        grid = grid.view(batch, windows, window, windows, window, in_dim).transpose(2, 3)
        y = super().forward(grid.reshape(batch * windows * windows, window * window, in_dim))
        y = y.view(batch, windows, windows, window, window, -1).transpose(2, 3)
        y = y.reshape(batch, side + padding, side + padding, -1)[:, before : before + side, before : before + side]
        return y.reshape(batch, count, -1)


def _relative_position_index(window: int) -> Tensor:
    """Index of the difference of position of two tokens in a window, of (2 window - 1)^2: int64 (window^2, window^2).

    Source: Swin Transformer (arXiv 2103.14030), section 3.2.
    """
    # On the CPU: on the meta device this arithmetic would import torch's compiler.
    steps = torch.arange(window, device="cpu")
    differences = steps[:, None] - steps + window - 1
    rows = differences.repeat_interleave(window, 0).repeat_interleave(window, 1)
    return (rows * (2 * window - 1) + differences.repeat(window, window)).to(torch.get_default_device())


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Softmax attention of (B, heads, N, head_dim); `mask` is added to the scores."""
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and torch.is_grad_enabled():
        # PyTorch's fused CPU backward takes several times as long in bfloat16.
        scores = q * (q.shape[-1] ** -0.5 if scale is None else scale) @ k.transpose(-2, -1)
        return F.dropout((scores if mask is None else scores + mask).softmax(-1).to(v.dtype), dropout, dropout > 0) @ v
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scale)


class Mlp(nn.Module):
    """MLP fc2(GELU(fc1(x))) with the exact (erf) GELU; keys `fc1`, `fc2` as in timm."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


def init_linear(module: nn.Module) -> None:
    """Initialise a linear layer as the published models: truncated normal (0.02), zero bias. Other modules stay."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
