"""Weighted statistics: by the definition in numpy, and blind to tokens that nothing reads."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from milkweed.compress.structure.importance import BATCH, PLAIN_SHARE, weighted_statistics

from ...models.plain_statistics import collect_statistics


class FirstToken(nn.Module):
    """Tokens go through two layers; the classes are read from the first token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(3, 6), nn.Linear(6, 4, bias=False), nn.Linear(4, 5)
        self.unused = nn.Linear(3, 2)

    def forward(self, images: Tensor) -> Tensor:
        tokens = images.flatten(2).transpose(1, 2)  # (B, H*W, 3)
        self.unused(tokens)
        return self.head(self.two(self.one(tokens).tanh())[:, 0])


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return FirstToken().eval()


@pytest.fixture
def images() -> Tensor:
    """The first token is of another kind than the others."""
    found = torch.randn(BATCH + 9, 3, 2, 4, generator=torch.Generator().manual_seed(1))
    found[:, :, 0, 0] = found[:, :, 0, 0] * torch.tensor([3.0, 0.5, 0.1]) + torch.tensor([0.0, 2.0, -1.0])
    return found


def test_weights_are_the_lengths_of_the_answers_gradient(model: nn.Module, images: Tensor) -> None:
    found = weighted_statistics(model, ["one", "two"], [images])
    generator = torch.Generator().manual_seed(0)
    x = images.flatten(2).transpose(1, 2)
    # By hand: d log p(y) / d logits is (1 at y) - p; back through head, two and tanh.
    p = model(images).softmax(-1).detach()
    drawn = torch.cat([torch.multinomial(part, 1, generator=generator)[:, 0] for part in p.split(BATCH)])
    at_two = (nn.functional.one_hot(drawn, 5) - p) @ model.head.weight.detach()
    at_one = (at_two @ model.two.weight.detach()) * (1 - model.one(x[:, 0]).tanh().detach() ** 2)
    hidden = model.one(x).tanh().detach()
    for name, inputs, gradient in (("one", x, at_one), ("two", hidden, at_two)):
        first, every = inputs[:, 0].double().numpy(), inputs.flatten(0, 1).double().numpy()
        weights = gradient.double().norm(dim=-1).numpy()
        weighted = weights / weights.sum()
        mean = (1 - PLAIN_SHARE) * weighted @ first + PLAIN_SHARE * every.mean(0)
        second = (1 - PLAIN_SHARE) * (first.T * weighted) @ first + PLAIN_SHARE * every.T @ every / len(every)
        np.testing.assert_allclose(found[name].mean, mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[name].covariance, second - np.outer(mean, mean), rtol=1e-4, atol=1e-5)
        assert found[name].tokens == len(images) * 8


def test_a_layer_that_no_answer_depends_on_has_plain_statistics(model: nn.Module, images: Tensor) -> None:
    found = weighted_statistics(model, ["unused"], [images])["unused"]
    plain = collect_statistics(model, ["unused"], images.split(BATCH))["unused"]
    torch.testing.assert_close(found.mean, plain.mean)
    torch.testing.assert_close(found.covariance, plain.covariance)


def test_the_model_is_left_alone_whatever_its_parameters_ask(model: nn.Module, images: Tensor) -> None:
    before = copy.deepcopy(model.state_dict())
    want = weighted_statistics(model, ["one"], [images])["one"]
    model.requires_grad_(False)
    with torch.inference_mode():
        found = weighted_statistics(model, ["one"], images.split(BATCH))["one"]
    torch.testing.assert_close(found.covariance, want.covariance, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_no_image_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="layer one got no input: calibration needs at least one image"):
        weighted_statistics(model, ["one"], [])
