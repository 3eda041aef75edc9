"""The study of compression: what its halves are, and what the command writes of a row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from milkweed.bench.studies import compression
from milkweed.models import BundleConfig, create_model, default_preprocess, load_bundle, save_bundle
from milkweed.models.bundle.labels import default_labels

pytestmark = pytest.mark.slow

ARCH = "deit_tiny_patch16_224"
VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 6}
PHOTOS = 12


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(PHOTOS):
        pixels = np.random.default_rng(index).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index % 3}_{index:03}.png")
    return folder


def test_halves_share_no_photograph_and_can_be_exchanged(tmp_path: Path, photos: Path) -> None:
    names = []
    for swap in (False, True):
        folders = compression.halves(photos, tmp_path / "work", swap)
        names.append([sorted(path.name for path in folder.iterdir()) for folder in folders])
    assert names[0] == names[1][::-1]
    assert not {*names[0][0]} & {*names[0][1]}
    assert len(names[0][0]) == len(names[0][1]) == PHOTOS // 2


def test_a_row_is_compressed_and_compared_with_the_dense_model(tmp_path: Path, photos: Path) -> None:
    torch.manual_seed(0)
    config = BundleConfig(
        arch=ARCH, arch_args=VIT, preprocess=default_preprocess(ARCH, **VIT), labels=default_labels(6)
    )
    save_bundle(tmp_path / "bundle", create_model(ARCH, **VIT), config)
    work, out, picture = tmp_path / "work", tmp_path / "results" / "c.json", tmp_path / "c.svg"
    places = [str(tmp_path / "bundle"), str(photos), str(work)]
    compression.main([*places, "--rows", "plain-mlp62", "--out", str(out), "--plot", str(picture)])
    document = json.loads(out.read_text())
    _, measure = compression.measuring(tmp_path / "bundle", work / "evaluating")
    after = measure(load_bundle(work / "plain-mlp62")[0])
    assert (document["arch"], document["dense_top1"]) == (ARCH, measure.before.top1)
    (row,) = document["rows"]
    assert (row["row"], row["share"], row["images"]) == ("plain-mlp62", 0.625, PHOTOS // 2)
    assert (row["top1"], row["agreement"], row["kl"]) == (after.top1, after.agreement, pytest.approx(after.kl))
    assert row["kl"] > 0
    assert picture.stat().st_size > 10_000
