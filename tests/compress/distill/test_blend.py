"""Structured layers that take over from dense ones: what they compute on the way, and what is left behind."""

import copy

import pytest
import torch
from torch import nn

from milkweed.compress.distill.blend import BlendedLinear, blend, unblend
from milkweed.models.layers.select import layer_specs_for, replace_linears


def models() -> tuple[nn.Module, nn.Module]:
    """A dense model that is not trained, and one whose first layer is Monarch."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).requires_grad_(False)
    model = copy.deepcopy(dense)
    replace_linears(model, layer_specs_for(model, ["0"], "monarch", nblocks=2))
    return dense, model.requires_grad_(True)


def test_the_share_rises_by_forwards_with_gradients_alone() -> None:
    dense, model = models()
    structured, x = copy.deepcopy(model), torch.randn(3, 8)
    blend(model, dense, 4)
    before, after = dense[0](x), structured[0](x)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0, 1.0):
        with torch.no_grad():
            torch.testing.assert_close(model[0](x), (1 - share) * before + share * after)
        model[0](x)
    unblend(model)
    assert model.state_dict().keys() == structured.state_dict().keys()
    assert torch.equal(model(x), structured(x))


def test_the_dense_layer_is_not_trained_and_the_share_is_saved() -> None:
    dense, model = models()
    blend(model, dense, 4)
    model(torch.randn(3, 8)).sum().backward()
    layer = model[0]
    assert isinstance(layer, BlendedLinear)
    assert isinstance(model[2], nn.Linear)
    assert layer.dense.weight.grad is None
    assert layer.structured.blkdiag1.grad is not None
    other = models()[1]
    blend(other, dense, 4)
    other.load_state_dict(model.state_dict())
    assert float(other[0].share) == pytest.approx(0.25)
