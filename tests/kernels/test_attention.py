"""Attention by its definition and by torch's own backends, against torch in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from milkweed.kernels.attention import SDPA_BACKENDS, attention_reference, sdpa_attention


def packed(tokens: int, heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Random queries, keys and values (2, tokens, 3 * heads * head_dim), and their attention, in float64."""
    q, k, v = torch.randn(3, 2, heads, tokens, head_dim, generator=torch.Generator().manual_seed(0)).double()
    qkv = torch.stack([q, k, v]).permute(1, 3, 0, 2, 4).flatten(2)
    expected = F.scaled_dot_product_attention(q, k, v, scale=head_dim**-0.5)
    return qkv, expected.transpose(1, 2).flatten(2)


def test_the_definition_and_pinned_backends_agree_with_torch() -> None:
    qkv, expected = packed(17, 3, 32)
    torch.testing.assert_close(attention_reference(qkv, 3, 32**-0.5), expected)
    for backend in (None, "math"):
        torch.testing.assert_close(sdpa_attention(qkv, 3, 32**-0.5, backend), expected)
    assert set(SDPA_BACKENDS) == {"cudnn", "flash", "efficient", "math"}
    with pytest.raises(ValueError, match="'fast'"):
        sdpa_attention(qkv, 3, 32**-0.5, "fast")
    with pytest.raises(ValueError, match="5 heads"):
        attention_reference(qkv, 5, 32**-0.5)


def test_in_half_precision_the_definition_is_near() -> None:
    """It is the operator's CPU implementation, which works on bfloat16 too."""
    qkv, expected = packed(50, 2, 64)
    half = attention_reference(qkv.bfloat16(), 2, 64**-0.5).double()
    assert float((half - expected).norm() / expected.norm()) < 1e-2
