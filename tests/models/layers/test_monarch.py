"""MonarchLinear: shapes, keys and initial values as in fly; its dense equivalent."""

import pytest
import torch

from milkweed.models.layers.monarch import MonarchLinear
from milkweed.models.layers.shapes import monarch_shapes


@pytest.mark.parametrize(
    ("widths", "nblocks", "want"),
    [
        ((256, 512), 4, ((4, 64, 64), (4, 128, 64))),
        ((512, 256), 4, ((4, 64, 128), (4, 64, 64))),
        ((147, 64), 4, ((4, 16, 37), (4, 16, 16))),
        ((50, 70), 4, ((4, 13, 13), (4, 18, 13))),
        ((64, 256), 16, ((16, 4, 4), (16, 16, 4))),
    ],
)
def test_shapes_are_flys(widths: tuple[int, int], nblocks: int, want: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    assert monarch_shapes(*widths, nblocks) == want
    layer = MonarchLinear(*widths, nblocks=nblocks)
    assert (tuple(layer.blkdiag1.shape), tuple(layer.blkdiag2.shape)) == want
    assert list(layer.state_dict()) == ["bias", "blkdiag1", "blkdiag2"]


def test_rank_sets_the_rank_of_every_sub_block() -> None:
    layer = MonarchLinear(32, 48, nblocks=4, rank=3)
    assert layer.blkdiag1.shape == (4, 12, 8)
    dense = layer.dense_weight()
    for j in range(4):
        for k in range(4):
            assert torch.linalg.matrix_rank(dense[j::4, 8 * k : 8 * k + 8].double(), rtol=1e-5) == 3


def test_one_block_with_a_rank_is_low_rank() -> None:
    layer = MonarchLinear(20, 30, bias=False, nblocks=1, rank=5)
    assert list(layer.state_dict()) == ["blkdiag1", "blkdiag2"]
    assert torch.linalg.matrix_rank(layer.dense_weight().double(), rtol=1e-5) == 5
    x = torch.randn(3, 20)
    torch.testing.assert_close(layer(x), x @ layer.blkdiag1[0].T @ layer.blkdiag2[0].T)


def test_initial_values_fill_flys_bounds() -> None:
    torch.manual_seed(0)
    layer = MonarchLinear(256, 1024, nblocks=4)
    for factor in (layer.blkdiag1.detach(), layer.blkdiag2.detach()):
        bound = factor.shape[-1] ** -0.5
        assert 0.98 * bound <= factor.abs().max() <= bound
        assert abs(float(factor.std()) - bound / 3**0.5) < 0.02 * bound
    assert 0.9 / 32 <= layer.bias.abs().max() <= 1 / 32
