"""The study of compression: what its halves are, and that its forms are measured as the dense model is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from milkweed.bench.studies import compression, levers
from milkweed.jobs.search import timing
from milkweed.models import BundleConfig, create_model, default_preprocess, save_bundle
from milkweed.models.bundle.labels import default_labels
from milkweed.models.programs.session import kernels_refusal

pytestmark = pytest.mark.slow

ARCH = "deit_tiny_patch16_224"
VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 6}
PHOTOS = 2 * levers.MIN_IMAGES
EXACT, ROUNDED = 1e-6, 0.05


def photos(folder: Path) -> None:
    folder.mkdir()
    for index in range(PHOTOS):
        pixels = np.random.default_rng(index).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index % 3}_{index:03}.png")


def test_halves_share_no_photograph_and_can_be_exchanged(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    names = []
    for swap in (False, True):
        found = compression.halves(tmp_path / "photos", tmp_path / "work", swap)
        names.append([sorted(path.name for path in folder.iterdir()) for folder in found])
    assert names[0] == names[1][::-1]
    assert not {*names[0][0]} & {*names[0][1]}
    assert len(names[0][0]) == len(names[0][1]) == PHOTOS // 2


def test_every_form_is_compared_with_the_dense_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nncf", reason="the extra `quantize` is not installed")
    monkeypatch.setattr(levers, "computes_in_bfloat16", lambda _: False)
    monkeypatch.setattr(timing, "SECONDS", 0.01)
    monkeypatch.setattr(timing, "TURN_SECONDS", 0.001)
    torch.manual_seed(0)
    config = BundleConfig(
        arch=ARCH, arch_args=VIT, preprocess=default_preprocess(ARCH, **VIT), labels=default_labels(6)
    )
    save_bundle(tmp_path / "bundle", create_model(ARCH, **VIT), config)
    photos(tmp_path / "photos")
    calibrating, evaluating = compression.halves(tmp_path / "photos", tmp_path, False)
    arch, measure = compression.measuring(tmp_path / "bundle", evaluating)
    assert arch == ARCH
    found = compression.forms({"dense": tmp_path / "bundle"}, calibrating, tmp_path, measure)
    names = ["OpenVINO float32", "OpenVINO int8", "OpenVINO asymmetric int8"]
    names += [] if kernels_refusal() else ["milkweed bfloat16", "milkweed int8"]
    assert [row["form"] for row in found] == [f"dense, {name}" for name in names]
    assert found[0]["kl"] < EXACT
    assert all(row["kl"] < ROUNDED and row["ms"].keys() == {*levers.BATCHES} for row in found)
