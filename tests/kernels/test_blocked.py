"""The blocked layout against the definition of the Monarch product."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from milkweed.kernels.blocked import Activation, BlockedMonarch, activated, blocked_reference, lay_out
from milkweed.kernels.reference import monarch_reference


def factors(nb: int, q: int, p: int, s: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    w1 = torch.randn(nb, q, p, generator=generator, dtype=torch.float64)
    w2 = torch.randn(nb, s, q, generator=generator, dtype=torch.float64)
    return w1.bfloat16().double(), w2.bfloat16().double()


def blocked(w1: Tensor, w2: Tensor, bias: Tensor | None, dtype: torch.dtype) -> BlockedMonarch:
    """A layer with slots in steps of 8 and w1's columns in steps of 16."""
    (nb, q, p), s = w1.shape, w2.shape[1]
    return lay_out(w1, w2, bias, nb * s, -(-q // (8 * nb)) * 8, -(-p // 16) * 16, dtype)


def through_layout(x: Tensor, layer: BlockedMonarch) -> Tensor:
    """The product by the layout's own words, in float64: t[j*R + k*c + i], then output u*nb + j."""
    nb, c, p = layer.K, layer.c, layer.p
    R = nb * c
    t = x.new_zeros(len(x), nb * R)
    for k in range(nb):
        padded = F.pad(x[:, k * p : (k + 1) * p], (0, layer.w1.shape[2] - p))
        rows = padded @ layer.w1[k].double().T
        for j in range(nb):
            t[:, j * R + k * c : j * R + (k + 1) * c] = rows[:, j * c : (j + 1) * c]
    y = x.new_zeros(len(x), layer.out_features)
    for j in range(nb):
        y[:, j::nb] = t[:, j * R : (j + 1) * R] @ layer.w2[j].double().T
    return y


@given(st.sampled_from([2, 4, 8]), st.integers(1, 40), st.sampled_from([8, 16, 24, 40]), st.sampled_from([4, 8, 20]))
@settings(deadline=None, max_examples=60)
def test_layout_is_the_definition(nb: int, q: int, p: int, s: int) -> None:
    w1, w2 = factors(nb, q, p, s)
    layer = blocked(w1, w2, None, torch.bfloat16)
    assert layer.w1.shape == (nb, nb * layer.c, -(-p // 16) * 16)
    assert layer.w2.shape == (nb, s, nb * layer.c)
    assert layer.c * nb >= q
    x = torch.randn(3, nb * p, dtype=torch.float64)
    torch.testing.assert_close(through_layout(x, layer), monarch_reference(x, w1, w2), rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("act", list(Activation))
@pytest.mark.parametrize("with_bias", [False, True])
def test_reference_is_the_definition(dtype: torch.dtype, act: Activation, with_bias: bool) -> None:
    w1, w2 = (w / w.shape[2] ** 0.5 for w in factors(4, 18, 24, 20))
    w1, w2 = w1.to(dtype), w2.to(dtype)
    bias = torch.randn(80) if with_bias else None
    x, residual = torch.randn(37, 96).to(dtype), torch.randn(37, 80).to(dtype)
    y = monarch_reference(x.double(), w1.double(), w2.double())
    y = y if bias is None else y + bias
    y = activated(y, act) + residual
    layer = blocked(w1, w2, bias, dtype)
    got = blocked_reference(x, layer, act, residual)
    assert got.dtype == dtype
    assert (got - y).norm() / y.norm() <= (4e-3 if dtype == torch.bfloat16 else 1e-3)


def test_bias_stays_float32() -> None:
    w1, w2 = factors(2, 8, 8, 8)
    bias = torch.randn(16, dtype=torch.float64)
    layer = blocked(w1, w2, bias, torch.bfloat16)
    assert layer.bias is not None
    assert torch.equal(layer.bias.t().flatten(), bias.float())
    assert (layer.w1.dtype, layer.p, layer.out_features, layer.K) == (torch.bfloat16, 8, 16, 2)


def test_a_bias_that_does_not_fit_is_refused() -> None:
    w1, w2 = factors(2, 8, 8, 8)
    with pytest.raises(ValueError, match=r"bias of shape \(8,\): the layer has 16 outputs"):
        blocked(w1, w2, torch.zeros(8), torch.bfloat16)
