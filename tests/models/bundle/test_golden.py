"""A bundle holds its model's answers to golden images, and other answers are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from milkweed.models.architectures.registry import create_model
from milkweed.models.bundle.bundle import load_bundle, save_bundle
from milkweed.models.bundle.config import BundleConfig
from milkweed.models.bundle.golden import IMAGES, check_golden, golden_images, golden_record
from milkweed.models.bundle.labels import default_labels
from milkweed.models.errors import BundleError

from .edits import edit_config

ARGS = {"num_classes": 10, "embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 32, "patch_size": 8}
PREPROCESS = {"size": 32, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    made = create_model("deit_tiny_patch16_224", **ARGS)
    with torch.no_grad():
        made.head.weight.mul_(40)
    return made


@pytest.fixture
def bundle(tmp_path: Path, model: torch.nn.Module) -> Path:
    config = BundleConfig(arch="deit_tiny_patch16_224", arch_args=ARGS, preprocess=PREPROCESS)
    save_bundle(tmp_path / "b", model, config, default_labels(10))
    return tmp_path / "b"


def answers(model: torch.nn.Module, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval().to(dtype)(torch.from_numpy(golden_images(32)).to(dtype)).float().softmax(-1)


def test_images_are_always_the_same_and_fill_the_range():
    images = golden_images(48)
    assert images.shape == (IMAGES, 3, 48, 48)
    assert images.dtype == np.float32
    assert float(images.max()) > 1.8
    assert float(images.min()) < -1.8
    assert np.array_equal(images, golden_images(48))
    assert float(images[0, 0, 0, 0]) == 1.0  # cos 0 + sin 0
    assert len({float(plane.sum()) for plane in images.reshape(-1, 48, 48)}) > 1


def test_a_saved_bundle_has_its_models_golden_answers(bundle: Path):
    model, config = load_bundle(bundle)
    assert config.golden == json.loads((bundle / "config.json").read_text())["golden"]
    wanted = answers(model)
    best = wanted.topk(5)
    assert config.golden["index"] == best.indices.tolist()
    assert torch.allclose(torch.tensor(config.golden["probability"]), best.values, rtol=1e-6)
    check_golden(config.golden, wanted, "float32")
    check_golden(config.golden, answers(model, torch.bfloat16), "bfloat16")


def test_another_models_answers_are_refused(bundle: Path):
    model, config = load_bundle(bundle)
    with torch.no_grad():
        model.blocks[1].mlp.fc1.weight.mul_(0.5)
    with pytest.raises(BundleError, match=r"golden image 0, class \d+: the model answers 0\.\d+, its"):
        check_golden(config.golden, answers(model), "float32")
    with pytest.raises(BundleError, match="nan"):
        check_golden(config.golden, torch.full((2, 10), torch.nan), "float32")


def test_saving_leaves_the_mode_and_refuses_nan(tmp_path: Path, model: torch.nn.Module):
    model.train()
    golden_record(model, 32)
    assert model.training
    with torch.no_grad():
        model.head.bias.fill_(torch.nan)
    config = BundleConfig(arch="deit_tiny_patch16_224", arch_args=ARGS, preprocess=PREPROCESS)
    with pytest.raises(BundleError, match="not finite"):
        save_bundle(tmp_path / "nan", model, config, default_labels(10))
    assert not (tmp_path / "nan").exists()


def test_bundles_without_golden_answers_load(bundle: Path):
    edit_config(bundle, lambda document: document.pop("golden"))
    assert load_bundle(bundle)[1].golden == {}


def test_a_model_that_cannot_compute_its_images_is_one_line() -> None:
    model = create_model("deit_tiny_patch16_224", num_classes=2, img_size=32, embed_dim=12, depth=1, num_heads=2)
    with pytest.raises(BundleError, match=r"^the model cannot compute an image of 48 px: [^\n]+$"):
        golden_record(model, 48)


@pytest.mark.parametrize(("factor", "refused"), [(0.62, False), (1.7, False), (0.5, True), (2.0, True)])
def test_in_bfloat16_a_rare_class_may_be_off_where_the_answers_are_near(factor: float, refused: bool) -> None:
    """As EfficientNet-Lite0's are, which keeps the order of its classes but not the share of each."""
    recorded = [[0.083, 0.06, 0.046, 0.029, 0.027]] * IMAGES
    record = {"index": [[0, 1, 2, 3, 4]] * IMAGES, "probability": recorded}
    probabilities = np.full((IMAGES, 1000), (1 - sum(recorded[0])) / 995, np.float32)
    probabilities[:, :5] = recorded
    probabilities[0, 3] *= factor
    for dtype in ("float32", "float16"):
        with pytest.raises(BundleError, match="golden image 0, class 3"):
            check_golden(record, probabilities, dtype)
    if refused:
        with pytest.raises(BundleError, match="golden image 0, class 3"):
            check_golden(record, probabilities, "bfloat16")
    else:
        check_golden(record, probabilities, "bfloat16")
    probabilities[0, :3] *= 0.5  # others are off too
    with pytest.raises(BundleError, match="golden image 0, class 0"):
        check_golden(record, probabilities, "bfloat16")
