"""Fixtures of the compression tests: correlated inputs and their statistics, a tiny ViT whose layers matter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.models.compress.statistics import InputStatistics
from milkweed.models.registry import create_model

Inputs = Callable[..., InputStatistics]


def statistics_of(x: Tensor) -> InputStatistics:
    """Of inputs (tokens, features), by their definition."""
    mean = x.mean(0)
    return InputStatistics(mean, x.T @ x / len(x) - mean.outer(mean), len(x))


@pytest.fixture
def inputs() -> Inputs:
    """Statistics of so many strongly correlated features with a mean; the same for the same arguments."""

    def make(features: int, *, seed: int = 0, directions: int | None = None) -> InputStatistics:
        generator = torch.Generator().manual_seed(seed)
        common = torch.randn(directions or features, features, generator=generator, dtype=torch.float64)
        sizes = 0.8 ** torch.arange(len(common), dtype=torch.float64)
        x = torch.randn(2000, len(common), generator=generator, dtype=torch.float64) * sizes @ common
        return statistics_of(x + torch.randn(features, generator=generator, dtype=torch.float64))

    return make


@pytest.fixture
def vit(tiny_vit: dict[str, Any]) -> nn.Module:
    """A ViT of two blocks, 32 wide, whose answers depend on every layer."""
    torch.manual_seed(0)
    model = create_model("deit_tiny_patch16_224", num_classes=6, **tiny_vit).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(40 if name == "head.weight" else 2)
    return model.requires_grad_(False)


@pytest.fixture
def pictures() -> Tensor:
    """100 smooth random images, normalised, (100, 3, 32, 32)."""
    noise = torch.randn(100, 3, 6, 6, generator=torch.Generator().manual_seed(5))
    return nn.functional.interpolate(noise, size=(32, 32), mode="bicubic").contiguous()
