"""Rearranging hidden units: the function stays, errors fall where units belong together, and nothing moves in vain."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.compress.structure.permutation import (
    MAX_GROUPS,
    arrange_hidden_units,
    arrangeable_mlps,
    move_units,
    permuted,
)
from milkweed.models import create_model
from milkweed.models.projection.layer_fit import monarch_objective

from ...models.plain_statistics import collect_statistics

NAMES = ["blocks.0.mlp.fc1", "blocks.0.mlp.fc2", "blocks.1.mlp.fc1", "blocks.1.mlp.fc2"]


@pytest.fixture
def model(tiny_vit: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return create_model("deit_tiny_patch16_224", num_classes=5, **tiny_vit)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def planted(model: nn.Module) -> Tensor:
    """Give block 0's fc1 units of 8 kinds (rank-1 rows), shuffled; the order that sorts them to one kind a residue."""
    generator = torch.Generator().manual_seed(2)
    mlp = model.get_submodule("blocks.0.mlp")
    fc1 = mlp.get_submodule("fc1")
    assert isinstance(fc1, nn.Linear)
    hidden, width = fc1.weight.shape
    kinds = torch.randperm(hidden, generator=generator) % 4
    directions = torch.linalg.qr(torch.randn(width, width, generator=generator))[0][:4]
    scale = 0.5 + torch.rand(hidden, 1, generator=generator)
    with torch.no_grad():
        fc1.weight.copy_(directions[kinds] * scale)
    return kinds


def test_units_of_one_kind_come_to_one_residue(model: nn.Module, images: Tensor) -> None:
    planted(model)
    before = copy.deepcopy(model)
    statistics = collect_statistics(model, NAMES, [images])
    assert "blocks.0.mlp" in arrange_hidden_units(model, statistics, nblocks=4)
    with torch.no_grad():
        assert (model(images) - before(images)).abs().max() < 1e-5
    fc1, was = (m.get_submodule("blocks.0.mlp.fc1") for m in (model, before))
    assert isinstance(fc1, nn.Linear)
    assert isinstance(was, nn.Linear)
    rank_one = [torch.linalg.matrix_rank(fc1.weight[residue::4], tol=1e-4) for residue in range(4)]
    assert [int(rank) for rank in rank_one] == [1, 1, 1, 1]
    assert min(int(torch.linalg.matrix_rank(was.weight[residue::4], tol=1e-4)) for residue in range(4)) > 1
    seen = statistics["blocks.0.mlp.fc1"]
    sides = [monarch_objective(layer.weight.detach(), seen, 4, 1, sweeps=8) for layer in (was, fc1)]
    assert sides[1] < 1e-6 < sides[0]


def test_moved_statistics_are_those_of_the_moved_model(model: nn.Module, images: Tensor) -> None:
    statistics = collect_statistics(model, NAMES, [images])
    order = torch.randperm(128, generator=torch.Generator().manual_seed(3))
    move_units(model.get_submodule("blocks.1.mlp"), order)
    again = collect_statistics(model, NAMES, [images])
    moved = permuted(statistics["blocks.1.mlp.fc2"], order)
    assert torch.allclose(moved.mean, again["blocks.1.mlp.fc2"].mean, atol=1e-5)
    assert torch.allclose(moved.covariance, again["blocks.1.mlp.fc2"].covariance, atol=1e-5)
    assert torch.allclose(statistics["blocks.1.mlp.fc1"].covariance, again["blocks.1.mlp.fc1"].covariance, atol=1e-6)


def test_only_whole_mlps_with_known_inputs_are_considered(model: nn.Module, images: Tensor) -> None:
    statistics = collect_statistics(model, NAMES[:3], [images])
    assert arrangeable_mlps(model, statistics, 4) == ["blocks.0.mlp"]
    assert arrange_hidden_units(model, statistics, nblocks=1) == {}
    act = model.get_submodule("blocks.0.mlp")
    act.act = nn.Softmax(dim=-1)  # ties units together: they must not move
    assert arrangeable_mlps(model, statistics, 4) == []
    assert MAX_GROUPS == 8
