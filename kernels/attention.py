"""Softmax attention on packed qkv: which problems the short kernel takes, its definition, and torch's own backends."""

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

MAX_TOKENS = 256
"""Keys and values of one head must fit into shared memory, and a row of scores into registers."""

HEAD_DIMS = (32, 64)

MAX_BATCH = 65535
"""Images are the second dimension of the launch grid."""

SDPA_BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def attention_refusal(batch: int, tokens: int, head_dim: int, scale: float, dtype: torch.dtype) -> str | None:
    """Return why no tile of the `short_attention` kernel takes this problem; None if one does."""
    if dtype not in (torch.bfloat16, torch.float16):
        return f"{dtype} attention: the short kernel takes bfloat16 and float16"
    if head_dim not in HEAD_DIMS:
        return f"head dim {head_dim}: the short kernel takes {' and '.join(map(str, HEAD_DIMS))}"
    if not 1 <= tokens <= MAX_TOKENS:
        return f"{tokens} tokens: the short kernel takes 1 to {MAX_TOKENS}"
    if batch > MAX_BATCH:
        return f"batch {batch}: the short kernel takes at most {MAX_BATCH} images"
    if not scale > 0:
        return f"scale {scale}: the short kernel takes positive ones"
    return None


def attention_reference(qkv: Tensor, num_heads: int, scale: float, log_sizes: Tensor | None = None) -> Tensor:
    """Compute softmax(scale q k^T + log_sizes) v by the definition: qkv (B, N, 3*H*D) -> (B, N, H*D).

    Args:
        qkv: order q, k, v; then heads; then head dim. Any device and dtype.
        log_sizes: (B, N), float32 or wider: logarithms of what each key counts for; None where all count for 1.

    Raises:
        ValueError: the width is not three times num_heads heads, or log_sizes has another shape or dtype.
    """
    q, k, v = split_heads(qkv, num_heads)
    scores = (q @ k.transpose(-1, -2)).to(torch.promote_types(qkv.dtype, torch.float32)) * scale
    if log_sizes is not None:
        if log_sizes.shape != qkv.shape[:2] or log_sizes.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"log_sizes {tuple(log_sizes.shape)} of {log_sizes.dtype}: float32 (B, N) is needed")
        scores = scores + log_sizes[:, None, None]
    return merge_heads(torch.softmax(scores, dim=-1).to(v.dtype) @ v)


def sdpa_attention(
    qkv: Tensor, num_heads: int, scale: float, backend: str | None = None, log_sizes: Tensor | None = None
) -> Tensor:
    """Compute the same by torch's scaled_dot_product_attention, with a backend of `SDPA_BACKENDS` or torch's choice.

    Raises:
        ValueError: an unknown backend, or a width that does not fit.
        RuntimeError: the backend does not take this shape, dtype or device.
    """
    if backend is not None and backend not in SDPA_BACKENDS:
        raise ValueError(f"attention backend {backend!r}: must be one of {', '.join(SDPA_BACKENDS)}")
    q, k, v = split_heads(qkv, num_heads)
    mask = None if log_sizes is None else log_sizes.to(qkv.dtype)[:, None, None]
    with nullcontext() if backend is None else sdpa_kernel(SDPA_BACKENDS[backend]):
        return merge_heads(F.scaled_dot_product_attention(q, k, v, mask, scale=scale))


def split_heads(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B, N, 3*H*D) -> q, k, v, each a (B, H, N, D) view."""
    if qkv.dim() != 3 or num_heads < 1 or qkv.shape[2] % (3 * num_heads):
        raise ValueError(f"qkv of shape {tuple(qkv.shape)} is not (B, N, 3 * {num_heads} heads * head dim)")
    q, k, v = qkv.unflatten(2, (3, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def merge_heads(heads: Tensor) -> Tensor:
    """(B, H, N, D) -> (B, N, H*D), contiguous."""
    return heads.transpose(1, 2).flatten(2).contiguous()
