"""The serving form of a model computes the same function."""

import pytest
import torch
from torch import nn

from milkweed.models.architectures.vitae.reduction import PerformerAttention
from milkweed.models.layers.monarch import MonarchLinear
from milkweed.models.serving.prepare import PackedLinear, PackedMlp, prepare_for_inference

from ..small_models import build


def test_everything_is_packed_and_folded() -> None:
    model = prepare_for_inference(build("vitae", "all").eval())
    kinds = [type(m) for m in model.modules()]
    assert kinds.count(PackedMlp) == 2
    assert kinds.count(PackedLinear) == 2 * 2 + 2 * 2  # two are in each MLP
    assert MonarchLinear not in kinds
    assert nn.BatchNorm2d not in kinds
    assert not any(p.requires_grad for p in model.parameters())


def test_bfloat16_keeps_performer_features_and_stays_close() -> None:
    x = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        want = build("vitae", "all").eval()(x)
        model = prepare_for_inference(build("vitae", "all").eval(), dtype=torch.bfloat16)
        got = model(x.bfloat16())
    assert got.dtype == torch.bfloat16
    assert all(m.w.dtype == torch.float32 for m in model.modules() if isinstance(m, PerformerAttention))
    assert (got.float() - want).norm() / want.norm() < 3e-2


@pytest.mark.parametrize(
    "act", [nn.ReLU(), nn.GELU(approximate="tanh")], ids=["another activation", "approximate gelu"]
)
def test_an_mlp_that_is_not_exact_gelu_is_not_fused(act: nn.Module) -> None:
    model = build("vitae", "all").eval()
    mlp = model.layers[1].NC[0].mlp
    mlp.act = act
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        want = model(x)
        packed = prepare_for_inference(model)
        got = packed(x)
    assert [type(m) for m in packed.modules()].count(PackedMlp) == 1
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
