"""Structured layers with `factor_scales` start and learn as a dense layer of timm's initialisation: by measurement."""

import pytest
import torch
from torch import Tensor, nn

from milkweed.models.layers.blockdiag import BlockdiagLinear
from milkweed.models.layers.lowrank import LowRankLinear
from milkweed.models.layers.monarch import MonarchLinear
from milkweed.models.layers.pixelfly import PixelflyLinear
from milkweed.models.training import TrainingRecipe, parameter_groups
from milkweed.models.training.factor_scales import DENSE_STD, factor_scales, initialise_factors

RECIPE = TrainingRecipe(epochs=1, batch_size=1, lr=1e-5, weight_decay=0.0, structured_lr=True)
DRAWS = 8

KINDS = {
    "Monarch": lambda width, out: MonarchLinear(width, out, nblocks=4),
    "Monarch by rank": lambda width, out: MonarchLinear(width, out, nblocks=2, rank=width // 8),
    "low rank": lambda width, out: LowRankLinear(width, out, rank=width // 4),
    "block-diagonal": lambda width, out: BlockdiagLinear(width, out, nblocks=4),
}


def dense(width: int, out: int) -> nn.Linear:
    layer = nn.Linear(width, out)
    nn.init.normal_(layer.weight, std=DENSE_STD)
    nn.init.zeros_(layer.bias)
    return layer


def first_update(layer: nn.Module, x: Tensor) -> float:
    """How far the first step of AdamW moves the outputs, for a loss that is linear in them."""
    groups = [{**group, "lr": RECIPE.lr * group["rate"]} for group in parameter_groups(nn.Sequential(layer), RECIPE)]
    before = layer(x)
    (before * torch.randn_like(before)).sum().backward()
    torch.optim.AdamW(groups).step()
    return float((layer(x) - before).detach().square().mean().sqrt())


@pytest.mark.slow_beyond(10)
@pytest.mark.parametrize("width", [64, 192, 1024])
@pytest.mark.parametrize("ratio", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_the_first_update_are_of_a_dense_layers_size(kind: str, ratio: int, width: int) -> None:
    torch.manual_seed(0)
    outputs, updates = torch.zeros(2), torch.zeros(2)
    for _ in range(DRAWS):
        structured = KINDS[kind](width, ratio * width)
        initialise_factors(structured)
        for place, layer in enumerate((dense(width, ratio * width), structured)):
            layer.bias.requires_grad_(False)
            outputs[place] += layer(torch.randn(64, width)).detach().std()
            updates[place] += first_update(layer, torch.randn(1, width))
    assert float(outputs[1] / outputs[0]) == pytest.approx(1, abs=0.05)
    assert 0.7 < float(updates[1] / updates[0]) < 1.3


def test_with_gains_of_one_the_rates_are_those_of_btt() -> None:
    """in_features / (fan-in x factors): for a square layer of sqrt(d) blocks, sqrt(d) / 2 as in the paper."""
    layer = MonarchLinear(2500, 2500, nblocks=50)  # DENSE_STD sqrt(2500) = 1
    scales = factor_scales(layer).values()
    assert [(scale.std, scale.rate) for scale in scales] == [pytest.approx((1 / 50**0.5, 25.0))] * 2


def test_a_pixelfly_layer_stays_as_it_is() -> None:
    layer = PixelflyLinear(32, 32, rank=4, block_size=4, butterfly_size=8)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    initialise_factors(layer)
    assert factor_scales(layer) == {}
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
