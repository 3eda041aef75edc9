"""CNNs: the BatchNorms that serving forms and runtimes fold into convolutions are computed as in float64."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from milkweed.models import create_model
from milkweed.models.onnx.export import write_verified
from milkweed.models.onnx.openvino_session import OpenVinoSession
from milkweed.models.onnx.session import OnnxSession
from milkweed.models.serving.prepare import fold_batch_norms, prepare_for_inference

from ..tiny import with_statistics

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "arch",
    [
        "test_resnet",
        pytest.param("test_efficientnet", marks=pytest.mark.slow),
        pytest.param("mobilenetv3_small_050", marks=pytest.mark.slow),
        pytest.param("test_convnext", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow_beyond(10)
def test_every_form_computes_what_float64_does(tmp_path: Path, arch: str) -> None:
    torch.manual_seed(0)
    model = with_statistics(create_model(arch, num_classes=7))
    images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        exact = copy.deepcopy(model).double()(images.double())
        served = prepare_for_inference(copy.deepcopy(model))(images)
    write_verified(model, tmp_path / "model.onnx", 64)
    forms = {"torch": served, "ONNX Runtime": OnnxSession(tmp_path / "model.onnx")(images)}
    forms["OpenVINO"] = OpenVinoSession(tmp_path / "model.onnx")(images)
    for name, answers in forms.items():
        error = (torch.as_tensor(answers).double() - exact).abs().max() / exact.abs().max().clamp(min=1)
        assert error < 1e-5, name


def test_norms_behind_convolutions_are_folded_to_float64() -> None:
    layers = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)]
    torch.manual_seed(0)
    model = with_statistics(nn.Sequential(*layers)).double()
    images = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    with torch.inference_mode():
        want = model(images)
        fold_batch_norms(model)
        torch.testing.assert_close(model(images), want, rtol=1e-12, atol=1e-12)
    assert not [module for module in model if isinstance(module, nn.BatchNorm2d)]
