"""KL divergence and agreement by their definitions."""

import copy

import pytest
import torch
from torch import Tensor, nn

from milkweed.models.divergence import answers, diverge


def test_divergence_follows_its_definition(vit: nn.Module, pictures: Tensor) -> None:
    reference = answers(vit, [pictures])
    other = copy.deepcopy(vit)
    with torch.no_grad():
        other.get_parameter("head.weight").mul_(0.2)
        found = diverge(other, pictures.split(16), reference)
        p, q = reference.double().exp(), other(pictures).double().softmax(-1)
    assert found.kl == pytest.approx(float((p * (p / q).log()).sum(-1).mean()), rel=1e-4)
    assert found.agreement == 100 * float((p.argmax(-1) == q.argmax(-1)).double().mean())
    assert found.images == 100
    same = diverge(vit, [pictures], reference)
    assert (abs(same.kl) < 1e-6, same.agreement) == (True, 100)
