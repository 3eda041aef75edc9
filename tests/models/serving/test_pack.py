"""The serving form of a model computes the same function."""

import pytest
import torch
from torch import nn

from milkweed.models.architectures.vitae import ViTAE
from milkweed.models.architectures.vitae.reduction import PerformerAttention
from milkweed.models.layers.monarch import MonarchLinear
from milkweed.models.serving.pack import PackedLinear, PackedMlp, prepare_for_inference

SMALL = {
    "img_size": 32,
    "embed_dims": (8, 8, 16),
    "token_dims": (8, 16, 32),
    "downsample": (2, 2, 1),
    "kernel_sizes": (3, 3, 3),
    "depths": (0, 0, 2),
    "num_heads": (1, 1, 2),
    "mlp_ratio": 2,
    "groups": (1, 1, 8),
    "dilations": ((1, 2, 3, 4), (1, 2, 3), (1, 2)),
}


def small_model() -> ViTAE:
    torch.manual_seed(0)
    model = ViTAE(num_classes=10, **SMALL)
    for cell in model.layers[2].NC:
        cell.mlp.fc1, cell.mlp.fc2 = MonarchLinear(32, 64), MonarchLinear(64, 32)
    cell.attn.proj = MonarchLinear(32, 32)
    for m in model.modules():  # statistics and scales that a folding mistake would show
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.running_mean, -1, 1)
            nn.init.uniform_(m.running_var, 0.5, 2)
            nn.init.uniform_(m.weight, 0.5, 2)
            nn.init.uniform_(m.bias, -1, 1)
    return model.eval()


def test_the_float32_serving_form_is_the_same_function() -> None:
    model = small_model()
    x = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        want = model(x)
        got = prepare_for_inference(model)(x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_everything_is_packed_and_folded() -> None:
    model = prepare_for_inference(small_model())
    kinds = [type(m) for m in model.modules()]
    assert kinds.count(PackedMlp) == 2
    assert kinds.count(PackedLinear) == 1 + 2 * 2  # two are in each MLP
    assert MonarchLinear not in kinds
    assert nn.BatchNorm2d not in kinds
    assert not any(p.requires_grad for p in model.parameters())


def test_bfloat16_keeps_performer_features_and_stays_close() -> None:
    x = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        want = small_model()(x)
        model = prepare_for_inference(small_model(), dtype=torch.bfloat16)
        got = model(x.bfloat16())
    assert got.dtype == torch.bfloat16
    assert all(m.w.dtype == torch.float32 for m in model.modules() if isinstance(m, PerformerAttention))
    assert (got.float() - want).norm() / want.norm() < 3e-2


@pytest.mark.parametrize(
    "act", [nn.ReLU(), nn.GELU(approximate="tanh")], ids=["another activation", "approximate gelu"]
)
def test_an_mlp_that_is_not_exact_gelu_is_not_fused(act: nn.Module) -> None:
    model = small_model()
    mlp = model.layers[2].NC[0].mlp
    mlp.act = act
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        want = model(x)
        packed = prepare_for_inference(model)
        got = packed(x)
    assert [type(m) for m in packed.modules()].count(PackedMlp) == 1
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
