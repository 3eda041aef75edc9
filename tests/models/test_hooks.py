"""Hooks see every forward of the layers that are named, and go, also where the model fails."""

import pytest
import torch
from torch import nn

from milkweed.models.hooks import hooked


def test_hooks_are_called_with_each_layers_own_tensors_and_are_removed() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    seen: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    x = torch.randn(3, 4)
    with hooked(model, ["2", "0"], lambda name, x, y: seen.append((name, x[0], y))):
        y = model(x)
    assert [name for name, _, _ in seen] == ["0", "2"]
    assert torch.equal(seen[0][1], x)
    assert torch.equal(seen[1][1], seen[0][2].relu())
    assert torch.equal(seen[1][2], y)
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.raises(RuntimeError), hooked(model, ["2", "0"], lambda *_: None):
        model(torch.ones(1, 5))
    assert not any(module._forward_hooks for module in model.modules())
