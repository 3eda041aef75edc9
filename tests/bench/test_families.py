"""The table of families: every form that a model has, timed and judged, and why it has no other."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from milkweed.bench import families
from milkweed.bench.server.bundles import TINY, TINY_PREPROCESS, random_bundle, random_model, tiny_bundle
from milkweed.compress import timing
from milkweed.models import BundleConfig, save_bundle
from milkweed.models.bundle.labels import default_labels

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, seconds in {"SECONDS": 0.01, "TURN_SECONDS": 0.001}.items():
        monkeypatch.setattr(timing, name, seconds)
    (tmp_path / "photos").mkdir()
    for number in range(64):
        rng = np.random.default_rng(number)
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(tmp_path / "photos" / f"{number}.png")
    return tmp_path / "photos"


def pooled_bundle(path: Path) -> Path:
    """A tiny ViT without a class token, whose head reads the mean of the patches."""
    arch, args = "deit_tiny_patch16_224", {"num_classes": 10, "global_pool": "avg", "class_token": False, **TINY}
    config = BundleConfig(arch=arch, arch_args=args, preprocess=TINY_PREPROCESS)
    save_bundle(path, random_model(arch, **args), config, default_labels(10))
    return path


@pytest.mark.slow
def test_a_cnn_has_three_forms_and_a_vit_four(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("nncf", reason="the extra `quantize` is not installed")
    rows = []
    for name, source in {
        "cnn": random_bundle(tmp_path / "cnn", "test_resnet"),
        "vit": tiny_bundle(tmp_path / "vit"),
        "pooled": pooled_bundle(tmp_path / "pooled"),
    }.items():
        (folder := tmp_path / f"graphs of {name}").mkdir()
        rows.append(families.measure(source, photos, folder, trained=name == "vit"))
    cnn, vit, pooled = rows
    assert (cnn["family"], list(cnn["ms"]), list(cnn["notes"])) == ("resnet", ["float32", "bfloat16", "int8"], ["ours"])
    assert cnn["notes"]["ours"] == "there is no program for ResNet"
    assert cnn["quality"] == {}
    assert list(vit["ms"]) == [form for form in families.FORMS if form not in vit["notes"]]
    assert list(pooled["ms"]) == list(vit["ms"])
    assert vit["quality"]["float32"]["kl"]["value"] < 1e-6 < vit["quality"]["int8"]["kl"]["value"]


def test_a_form_that_a_model_has_not_is_an_empty_cell() -> None:
    row = {
        "family": "resnet",
        "model": "resnet50",
        "ms": {"float32": {"1": 35.9, "8": 35.8}, "int8": {"1": 9.7, "8": 8.9}},
    }
    assert families.table([row]).splitlines()[-1] == "| resnet | resnet50 | 35.90 / 35.80 |  | 9.70 / 8.90 |  |"
