"""Slopes of the KL by the parts of changes: against finite differences in float64, and without a trace in the model."""

import copy
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from milkweed.compress.structure.slopes import BATCH, Change, slopes
from milkweed.models.divergence import answers

NAMES = ("blocks.0.attn.qkv", "blocks.0.mlp.fc2", "blocks.1.mlp.fc1", "head")


@pytest.fixture
def changes(vit: nn.Module) -> dict[str, Change]:
    """Noise of a third of the layers' weights, at various parts."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for name, part in zip(NAMES, (1.0, 0.5, 0.25, 0.0), strict=True):
        linear = vit.get_submodule(name)
        noise = torch.randn(linear.weight.shape, generator=generator) * linear.weight.std() / 3
        found[name] = Change(noise, 0.1 * torch.randn(linear.bias.shape, generator=generator), part)
    return found


def kl_of(vit: nn.Module, pictures: Tensor, changes: Mapping[str, Change], parts: Mapping[str, float]) -> float:
    """Everything in float64, by the definition."""
    dense = copy.deepcopy(vit).double()
    model = copy.deepcopy(dense)
    with torch.no_grad():
        for name, change in changes.items():
            linear = model.get_submodule(name)
            linear.weight += parts[name] * change.weight.double()
            linear.bias += parts[name] * change.bias.double()
        p, q = (one(pictures.double()).log_softmax(-1) for one in (dense, model))
    return float((p.exp() * (p - q)).sum(-1).mean())


def test_slopes_are_the_derivatives(vit: nn.Module, pictures: Tensor, changes: dict[str, Change]) -> None:
    pictures = pictures[: BATCH + 7]
    before = copy.deepcopy(vit.state_dict())
    told: list[tuple[int, int]] = []
    batches = pictures.split(5)
    found = slopes(vit, changes, batches, answers(vit, batches), progress=lambda *done: told.append(done))
    parts = {name: change.part for name, change in changes.items()}
    for name in NAMES:
        above, below = (kl_of(vit, pictures, changes, {**parts, name: parts[name] + step}) for step in (1e-4, -1e-4))
        assert found[name] == pytest.approx((above - below) / 2e-4, rel=1e-2, abs=1e-5), name
    assert told == [(BATCH, BATCH + 7), (BATCH + 7, BATCH + 7)]
    assert all(torch.equal(value, before[name]) for name, value in vit.state_dict().items())
    assert all(parameter.grad is None for parameter in vit.parameters())


def test_in_inference_mode_too(vit: nn.Module, pictures: Tensor, changes: dict[str, Change]) -> None:
    reference = answers(vit, [pictures[:8]])
    want = slopes(vit, changes, [pictures[:8]], reference)
    with torch.inference_mode():
        assert slopes(vit, changes, [pictures[:8]], reference) == want
