"""Narrower layers that take so many bytes less are found, and the models that have them are fitted once."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from milkweed.jobs.search.levers import WHOLE, Shares
from milkweed.jobs.search.narrower import narrowed, smaller, widths_of
from milkweed.models import create_model
from milkweed.models.compress.narrow import narrow_model

ARGS = {"num_classes": 3, "embed_dim": 64, "depth": 2, "num_heads": 2, "img_size": 32, "patch_size": 8}
UNITS, PRODUCTS = 2 * 2 * 64 * 256, 2 * 2 * 64 * 64
"""Weights of the two MLPs, and of the layers of their blocks' queries and keys."""


def dense() -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model("deit_tiny_patch16_224", **ARGS).eval()


@pytest.mark.parametrize("weight_bytes", [1, 4])
def test_as_many_hidden_units_are_kept_as_fit(weight_bytes: int) -> None:
    model = dense()
    whole = sum(each.numel() for each in model.parameters())
    for share in (0.1, 0.3, 0.5):
        over = int(share * UNITS)
        found = smaller(model, weight_bytes * over, weight_bytes)
        assert [each.qk for each in found] == [1.0, 0.75, 0.5]
        for each in found:
            widths = widths_of(model, each)
            kept = sum(each.numel() for each in narrowed_parameters(widths))
            assert over <= whole - kept <= over + 0.06 * UNITS  # widths are multiples of eight


def narrowed_parameters(widths: Mapping[str, int]) -> list[torch.nn.Parameter]:
    return list(create_model("deit_tiny_patch16_224", widths=widths, **ARGS).parameters())


def test_narrower_queries_alone_are_taken_where_they_suffice() -> None:
    assert smaller(dense(), PRODUCTS // 5, 1)[-1] == Shares(1.0, 0.75)


def test_where_nothing_fits_the_narrowest_is_tried() -> None:
    assert smaller(dense(), 2 * UNITS, 1) == [Shares(0.05, 0.5)]
    assert widths_of(dense(), WHOLE) == {}


def test_what_was_fitted_is_read_again(tmp_path: Path) -> None:
    images = torch.randn(40, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    shares, file = Shares(0.5, 0.75), tmp_path / "w.pt"
    first = narrowed(dense(), shares, [images], file)
    wanted = narrow_model(dense(), widths_of(dense(), shares), [images])
    again = narrowed(dense(), shares, [], file)
    for model in (first, again):
        for key, value in model.state_dict().items():
            assert torch.equal(value, wanted.state_dict()[key])
