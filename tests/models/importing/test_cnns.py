"""timm's CNNs are imported like its ViTs: the bundle computes in float64 what timm's own model does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import save_for_hf
from torch import nn

from milkweed.models import import_checkpoint, load_bundle
from milkweed.models.errors import CheckpointError

from ..tiny import logits, with_statistics
from .containers import deit_pth, safetensors, timm_tar

pytestmark = pytest.mark.usefixtures("one_thread")

CNNS = [
    *("test_resnet", "test_efficientnet", "test_byobnet", "test_convnext", "mobilenetv3_small_050", "regnetx_002"),
    pytest.param("densenet121", marks=pytest.mark.slow),
    pytest.param("fastvit_t8", marks=pytest.mark.slow),
    pytest.param("coat_lite_tiny", marks=pytest.mark.slow),  # it has weights under several names
]


def trained(arch: str, **args: Any) -> nn.Module:
    """timm's model of three classes, its norms as after training."""
    torch.manual_seed(0)
    return with_statistics(timm.create_model(arch, num_classes=3, **args))


@pytest.mark.parametrize("arch", CNNS)
@pytest.mark.slow_beyond(4)
def test_a_cnn_answers_as_timms_does(tmp_path: Path, arch: str) -> None:
    model, size = trained(arch), 224 if arch == "coat_lite_tiny" else 64
    torch.save(model.state_dict(), tmp_path / "w.pth")
    config = import_checkpoint(tmp_path / "w.pth", arch, tmp_path / "b", preprocess={"size": size}).config
    published = timm.models.get_pretrained_cfg(arch)
    assert config.num_classes == 3
    assert config.preprocess == {
        "size": size,
        "crop_pct": published.crop_pct,
        "interpolation": published.interpolation,
        "mean": list(published.mean),
        "std": list(published.std),
    }
    loaded, _ = load_bundle(tmp_path / "b")
    assert loaded.state_dict().keys() == model.state_dict().keys()
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(logits(loaded.double(), size), logits(model.double(), size))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("write", "wrapper"), [(timm_tar, "state_dict_ema"), (deit_pth, "model_ema"), (safetensors, "")]
)
def test_containers_and_averages_are_taken_as_of_vits(tmp_path: Path, write: Callable[..., Path], wrapper: str) -> None:
    model = trained("test_resnet")
    report = import_checkpoint(write(tmp_path, dict(model.state_dict()), None), "test_resnet", tmp_path / "b")
    assert report.info.wrapper == wrapper
    assert torch.equal(logits(load_bundle(tmp_path / "b")[0], 64), logits(model, 64))


def test_a_tag_decides_how_images_are_prepared(tmp_path: Path) -> None:
    """torchvision's ResNet-50 has timm's keys, but is bilinear with a smaller crop."""
    with torch.device("meta"):
        names = timm.create_model("resnet50", num_classes=3).state_dict()
    torch.save({key: torch.zeros(t.shape, dtype=t.dtype) for key, t in names.items()}, tmp_path / "tv.pth")
    config = import_checkpoint(tmp_path / "tv.pth", "resnet50.tv_in1k", tmp_path / "b").config
    assert (config.arch, config.preprocess["interpolation"]) == ("resnet50.tv_in1k", "bilinear")


def test_a_folder_of_timms_names_the_cnn(tmp_path: Path) -> None:
    model = trained("test_efficientnet")
    save_for_hf(
        model, str(tmp_path / "f"), model_config={"label_names": ["cat", "dog", "owl"]}, safe_serialization=True
    )
    config = import_checkpoint(tmp_path / "f", None, tmp_path / "b").config
    assert (config.arch.partition(".")[0], [label.id for label in config.labels]) == (
        "test_efficientnet",
        ["cat", "dog", "owl"],
    )
    assert torch.equal(logits(load_bundle(tmp_path / "b")[0], 64), logits(model, 64))


@pytest.mark.parametrize(
    ("arch", "args", "message"),
    [
        ("resnet18", {}, "you asked for resnet18"),
        ("test_vit", {}, "you asked for test_vit"),
        ("test_resnet", {"in_chans": 1}, "test_resnet: in_chans 1 must be 3: images have 3 channels"),
        ("test_resnet", {"img_size": 64}, "'img_size': images of any size fit, preprocess has theirs"),
    ],
)
def test_what_does_not_fit_is_one_line_and_leaves_nothing(
    tmp_path: Path, arch: str, args: dict[str, Any], message: str
) -> None:
    weights = safetensors(tmp_path, dict(trained("test_resnet").state_dict()), None)
    with pytest.raises((CheckpointError, ValueError)) as caught:
        import_checkpoint(weights, arch, tmp_path / "b", arch_args=args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [weights.name]
