"""Operators of a chain: the plain evaluation against the definition in loops, and what keys say."""

import gc

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from milkweed.kernels.chain_ir import (
    Add,
    BlockDiagonal,
    Dense,
    Gelu,
    LayerNorm,
    Monarch,
    Problem,
    SelfAttention,
    adds_residual,
    describe,
    evaluate,
    kinds,
)
from milkweed.kernels.impls.base import packed
from milkweed.kernels.reference import monarch_to_dense

CPU = torch.device("cpu")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def monarch() -> Monarch:
    """A padded layer, 7 > 9 features, with q not divisible by the blocks."""
    return Monarch(normal(2, 3, 4, seed=1), normal(2, 5, 3, seed=2), normal(9, seed=3), 7, 9)


def test_each_operator_is_its_definition() -> None:
    x = normal(2, 3, 7)
    weight, bias = normal(7, seed=4), normal(7, seed=5)
    centred = x - x.mean(-1, keepdim=True)
    want = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias
    torch.testing.assert_close(evaluate([LayerNorm(weight, bias, 1e-5)], x), want)

    w, b = normal(4, 7, seed=6), normal(4, seed=7)
    torch.testing.assert_close(evaluate([Dense(w, b)], x), torch.einsum("bni,oi->bno", x, w) + b)
    torch.testing.assert_close(evaluate([Dense(w, None)], x), torch.einsum("bni,oi->bno", x, w))
    torch.testing.assert_close(evaluate([Gelu()], x), x * (1 + torch.erf(x / 2**0.5)) / 2)
    torch.testing.assert_close(evaluate([Add()], x, 2 * x), 3 * x)


def test_monarch_is_its_dense_matrix() -> None:
    layer, x = monarch(), normal(2, 3, 7)
    matrix = monarch_to_dense(layer.w1, layer.w2, 9, 7)
    assert layer.bias is not None
    torch.testing.assert_close(evaluate([layer], x), x @ matrix.T + layer.bias)


def test_block_diagonal_layers_multiply_the_channels_that_each_block_reads() -> None:
    x, weight, bias = normal(2, 3, 6), normal(2, 4, 3, seed=1), normal(8, seed=2)
    inputs = torch.tensor([[0, 2, 4], [1, 3, 5]])
    expected = torch.cat([x[..., inputs[block]] @ weight[block].T for block in range(2)], dim=-1) + bias
    torch.testing.assert_close(evaluate([BlockDiagonal(weight, inputs, bias)], x), expected)


def test_attention_takes_packed_heads_in_order() -> None:
    qkv = normal(2, 5, 3 * 2 * 4)
    got = evaluate([SelfAttention(2, 4, 0.7)], qkv)
    for image in range(2):
        for head in range(2):
            q, k, v = (qkv[image, :, part * 8 + head * 4 : part * 8 + head * 4 + 4] for part in range(3))
            want = torch.softmax(0.7 * q @ k.T, dim=-1) @ v
            torch.testing.assert_close(got[image, :, head * 4 : head * 4 + 4], want)


def test_attention_that_knows_sizes_sees_a_token_so_many_times() -> None:
    qkv, sizes = normal(2, 5, 3 * 2 * 4), torch.tensor([[1, 2, 1, 3, 1], [4, 1, 1, 1, 1]])
    got = evaluate([SelfAttention(2, 4, 0.7, sized=True)], qkv, sizes.double().log())
    for image in range(2):
        repeated = qkv[image].repeat_interleave(sizes[image], dim=0)[None]
        first = sizes[image].cumsum(0) - sizes[image]
        torch.testing.assert_close(got[image], evaluate([SelfAttention(2, 4, 0.7)], repeated)[0, first])
    with pytest.raises(ValueError, match="the chain knows sizes, but none was given"):
        evaluate([SelfAttention(2, 4, 0.7, sized=True)], qkv)
    with pytest.raises(ValueError, match=r"log_sizes \(2, 4\) of torch.float64: float32 \(B, N\) is needed"):
        evaluate([SelfAttention(2, 4, 0.7, sized=True)], qkv, sizes.double().log()[:, 1:])


def test_a_chain_is_its_operators_in_order() -> None:
    x, norm = normal(2, 3, 7), LayerNorm(normal(7, seed=4), normal(7, seed=5), 1e-6)
    dense = Dense(normal(7, 9, seed=6), None)
    chain = [norm, monarch(), Gelu(), dense, Add()]
    hidden = F.gelu(evaluate([chain[1]], evaluate([norm], x)))
    torch.testing.assert_close(evaluate(chain, x, x), evaluate([dense], hidden) + x)
    assert kinds(chain) == ("norm", "monarch", "gelu", "dense", "add")
    assert adds_residual(chain)
    assert not adds_residual(chain[:4])
    with pytest.raises(ValueError, match="adds a residual, but none was given"):
        evaluate(chain, x)


def test_descriptions_are_shapes_not_values() -> None:
    chain = [LayerNorm(torch.ones(7), torch.ones(7), 1e-6), monarch(), Gelu(), Dense(torch.ones(7, 9), None), Add()]
    assert describe(chain) == "norm(7,1e-06)+monarch(7>9,2x3x4,2x5x3,bias)+gelu+dense(9>7)+add"
    assert SelfAttention(3, 64, 0.125).describe() == "attention(3x64,0.125)"
    assert SelfAttention(3, 64, 0.125, sized=True).describe() == "attention(3x64,0.125,sizes)"
    assert describe([Dense(torch.ones(7, 9), torch.ones(7))]) == describe([Dense(torch.zeros(7, 9), torch.ones(7))])
    assert Problem(CPU, torch.bfloat16, 8, 197).describe() == "bfloat16,8x197"
    assert Problem(CPU, torch.bfloat16, 8, 197).rows == 1576


def test_factors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="width 9 is wider than the 8 inputs"):
        Monarch(torch.ones(2, 4, 4), torch.ones(2, 5, 4), None, 9, 10)
    with pytest.raises(ValueError, match="do not chain"):
        Monarch(torch.ones(2, 3, 4), torch.ones(2, 5, 4), None, 8, 10)


def test_packed_tensors_are_shared_while_used_and_then_gone() -> None:
    layer, made = monarch(), []

    def make() -> list[Tensor]:
        made.append(1)
        return [layer.w1.clone().requires_grad_()]

    problem = Problem(CPU, torch.float32, 1, 1)
    first = packed(layer, "a", problem, make)
    assert packed(layer, "a", Problem(CPU, torch.float32, 8, 5), make) is first  # another bucket, the same weights
    assert packed(layer, "a", problem, make, "other") is not first
    assert packed(layer, "b", problem, make) is not first
    assert packed(layer, "a", Problem(CPU, torch.bfloat16, 1, 1), make) is not first
    assert len(made) == 4
    assert not first.tensors[0].requires_grad
    del first
    gc.collect()
    assert not layer.layouts
    with pytest.raises(TypeError, match="gelu has no tensors"):
        packed(Gelu(), "a", problem, make)
