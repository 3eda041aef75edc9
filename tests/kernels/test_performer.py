"""The performer's packing and its plain-torch form, held to the model's own module and to float64."""

from math import sqrt

import pytest
import torch
from torch import Tensor, nn

from milkweed.kernels.performer import (
    PERFORMER_DIMS,
    PackedPerformer,
    PerformerMlp,
    pack_performer,
    performer_reference,
    performer_refusal,
    performer_tile,
)
from milkweed.models.architectures.vitae.reduction import PerformerAttention

DTYPES = (torch.bfloat16, torch.float16)


def packed_cell(cell: PerformerAttention, dtype: torch.dtype, *, mlp: bool = True) -> PackedPerformer:
    fc1, fc2 = cell.mlp[0], cell.mlp[2]
    assert isinstance(fc1, nn.Linear)
    assert isinstance(fc2, nn.Linear)
    norm = cell.norm2
    end = PerformerMlp(norm.weight, norm.bias, fc1.weight, fc1.bias, fc2.weight, fc2.bias, norm.eps)
    with torch.no_grad():
        return pack_performer(
            cell.w, cell.proj.weight, cell.proj.bias, end if mlp else None, eps=cell.epsilon, dtype=dtype
        )


def random_cell(dim: int) -> PerformerAttention:
    torch.manual_seed(dim)
    cell = PerformerAttention(3 * dim, dim)
    for parameter in (cell.norm2.weight, cell.norm2.bias):
        nn.init.normal_(parameter, mean=1.0, std=0.2)
    return cell.requires_grad_(False)


def reference(packed: PackedPerformer, kqv: Tensor, parallel: Tensor | None) -> Tensor:
    return performer_reference(kqv, packed.weights, packed.biases, parallel, packed.eps, packed.norm_eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", PERFORMER_DIMS)
def test_reference_is_the_models_cell(dim: int, dtype: torch.dtype) -> None:
    cell = random_cell(dim)
    tokens = torch.randn(2, 37, 3 * dim)
    parallel = torch.randn(2, 37, dim).to(dtype)
    kqv = cell.kqv(cell.norm1(tokens)).to(dtype)
    # The cell takes tokens, not kqv: give it one that passes the rounded kqv on.
    cell.kqv.weight.copy_(torch.eye(3 * dim))
    cell.kqv.bias.zero_()
    cell.norm1 = nn.Identity()
    expected = cell.double()(kqv.double(), parallel.double())
    ours = reference(packed_cell(cell, dtype), kqv, parallel).double()
    assert (ours - expected).norm() <= {torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype] * expected.norm()

    attended = cell.attend(kqv.double())
    ours = reference(packed_cell(cell, dtype, mlp=False), kqv, None).double()
    assert (ours - attended).norm() <= {torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype] * attended.norm()


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_features_lose_nothing_that_float32_holds(dtype: torch.dtype) -> None:
    dim = 64
    torch.manual_seed(0)
    w = torch.randn(dim // 2, dim) * 3
    packed = pack_performer(w, torch.eye(dim), torch.zeros(dim), None, eps=0.0, dtype=dtype)
    # With one key everywhere every weight is one, and y is the only value: w is seen through the sum of two keys.
    kqv = torch.zeros(1, 2, 3 * dim)
    kqv[0, 1, : 2 * dim] = torch.randn(2 * dim).mul(0.5).to(dtype).float()
    kqv[0, 0, 2 * dim :] = 1.0
    k, q, v = kqv.double().chunk(3, dim=-1)

    def features(t: Tensor) -> Tensor:
        return torch.exp(t @ w.double().T - t.square().sum(-1, keepdim=True) / 2) / sqrt(dim // 2)

    weights = features(q) @ features(k).transpose(1, 2)
    expected = v + weights @ v / weights.sum(-1, keepdim=True)
    ours = reference(packed, kqv.to(dtype).float(), None).double()  # float32 in, float32 out
    assert (ours - expected).abs().max() <= 3e-6


def test_projection_and_mlp_are_taken_rounded_to_the_dtype() -> None:
    cell = random_cell(32)
    ours = packed_cell(cell, torch.bfloat16)
    assert ours.dtype == torch.bfloat16
    assert ours.mlp
    assert ours.weights.shape == (32 * (3 * 16 + 3 * 32),)
    assert ours.biases.shape == (3, 32)
    assert ours.biases.dtype == torch.float32
    without = packed_cell(cell, torch.bfloat16, mlp=False)
    assert not without.mlp
    assert torch.equal(without.weights, ours.weights[: 32 * (3 * 16 + 32)])


@pytest.mark.parametrize(
    ("dim", "dtype", "text"),
    [(80, torch.bfloat16, "not 80"), (64, torch.float32, "not torch.float32"), (64, torch.bfloat16, None)],
)
def test_refusals_name_what_is_refused(dim: int, dtype: torch.dtype, text: str | None) -> None:
    refusal = performer_refusal(dim, dtype)
    assert refusal is None if text is None else text in str(refusal)


def test_packing_refuses_what_cannot_be_packed() -> None:
    good = random_cell(64)
    with pytest.raises(ValueError, match=r"not torch\.float32"):
        packed_cell(good, torch.float32)
    with pytest.raises(ValueError, match=r"w is \(31, 64\)"):
        pack_performer(good.w[:31], good.proj.weight, good.proj.bias, None, eps=0.0, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"up to 1e\+05 do not fit torch\.float16"):
        pack_performer(torch.full((32, 64), 1e5), good.proj.weight, good.proj.bias, None, eps=0.0, dtype=torch.float16)


def test_tile_fits_the_device() -> None:
    assert performer_tile(227 * 1024) == 0
    assert performer_tile(163 * 1024) == 0
    assert performer_tile(99 * 1024) == 1
