"""Narrower queries and keys: attention as it was where their products allow it, and the best fit where not."""

import pytest
import torch
from torch import Tensor

from milkweed.compress.widths.queries_keys import narrower_products
from milkweed.models.projection.statistics import InputStatistics, Moments

WIDTH, HEAD = 12, 8


def tokens() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.linspace(0.2, 3, WIDTH, dtype=torch.float64)
    return torch.randn(4, 50, WIDTH, generator=generator, dtype=torch.float64) * sizes + sizes.flip(0)


def weights(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weight and bias of queries, and weight of keys of that rank."""
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(HEAD, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
    low = torch.randn(HEAD, rank, generator=generator, dtype=torch.float64)
    return q, torch.randn(HEAD, generator=generator, dtype=torch.float64), low @ torch.linalg.pinv(low) @ k


def statistics(x: Tensor) -> InputStatistics:
    moments = Moments()
    moments.add(x)
    return moments.statistics("qkv")


def attention(q: tuple[Tensor, Tensor | None], k: Tensor, x: Tensor, scale: float) -> Tensor:
    weight, bias = q
    queries = x @ weight.T + (0 if bias is None else bias)
    return (queries @ (x @ k.T).mT * scale).softmax(-1)


@pytest.mark.parametrize("biased", [True, False])
def test_attention_stays_where_the_products_have_the_rank(biased: bool) -> None:
    x, (weight, bias, k) = tokens(), weights(3)
    q = (weight, bias if biased else None)
    queries, its_bias, keys = narrower_products(q, k, statistics(x), 3, HEAD**-0.5)
    assert queries.shape == keys.shape == (3, WIDTH)
    assert float(its_bias.abs().max()) > 0 if biased else not its_bias.any()
    found = attention((queries, its_bias), keys, x, 3**-0.5)
    torch.testing.assert_close(found, attention(q, k, x, HEAD**-0.5), rtol=0, atol=1e-5)


def test_the_error_of_the_products_is_what_eckart_and_young_leave() -> None:
    """Compute the products of queries with centred keys of the tokens themselves, and their best approximation."""
    x, (weight, bias, k) = tokens(), weights(HEAD)
    rows = x.flatten(0, 1)
    queries, its_bias, keys = narrower_products((weight, bias), k, statistics(x), 4, HEAD**-0.5)
    whole = (rows @ weight.T + bias) @ ((rows - rows.mean(0)) @ k.T).T * HEAD**-0.5
    found = (rows @ queries.T + its_bias) @ ((rows - rows.mean(0)) @ keys.T).T * 4**-0.5
    left = torch.linalg.svdvals(whole)[4:].square().sum().sqrt()
    torch.testing.assert_close((whole - found).norm(), left, rtol=1e-4, atol=0)
    assert float(left / whole.norm()) > 0.05
