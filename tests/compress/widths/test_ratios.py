"""Narrower layers that take so many bytes less are found."""

import pytest
import torch

from milkweed.compress.recipe import FULL_WIDTH, WidthRatios
from milkweed.compress.widths.ratios import smaller, widths_of
from milkweed.models import create_model

ARGS = {"num_classes": 3, "embed_dim": 64, "depth": 2, "num_heads": 2, "img_size": 32, "patch_size": 8}
UNITS, PRODUCTS = 2 * 2 * 64 * 256, 2 * 2 * 64 * 64
"""Weights of the two MLPs, and of the layers of their blocks' queries and keys."""


def dense() -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model("deit_tiny_patch16_224", **ARGS).eval()


@pytest.mark.parametrize("weight_bytes", [1, 4])
def test_as_many_hidden_units_are_kept_as_fit(weight_bytes: int) -> None:
    model = dense()
    whole = sum(weight.numel() for weight in model.parameters())
    for share in (0.1, 0.3, 0.5):
        over = int(share * UNITS)
        choices = smaller(model, weight_bytes * over, weight_bytes)
        assert [ratios.qk for ratios in choices] == [1.0, 0.75, 0.5]
        for ratios in choices:
            widths = widths_of(model, ratios)
            narrow = create_model("deit_tiny_patch16_224", widths=widths, **ARGS)
            kept = sum(weight.numel() for weight in narrow.parameters())
            assert over <= whole - kept <= over + 0.06 * UNITS  # widths are multiples of eight


def test_narrower_queries_alone_are_taken_where_they_suffice() -> None:
    assert smaller(dense(), PRODUCTS // 5, 1)[-1] == WidthRatios(1.0, 0.75)


def test_where_nothing_fits_the_narrowest_is_tried() -> None:
    assert smaller(dense(), 2 * UNITS, 1) == [WidthRatios(0.05, 0.5)]
    assert widths_of(dense(), FULL_WIDTH) == {}
