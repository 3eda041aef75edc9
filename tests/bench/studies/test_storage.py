"""The table of storages: every one is measured on the same photographs, and takes turns."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from milkweed.bench.studies import storage
from milkweed.models import BundleConfig, create_model, default_preprocess, save_bundle
from milkweed.models.bundle.config import STORAGES
from milkweed.models.bundle.labels import default_labels

VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 3}


def test_rows_are_of_the_same_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    arch = "deit_tiny_patch16_224"
    config = BundleConfig(
        arch=arch, arch_args=VIT, preprocess=default_preprocess(arch, **VIT), labels=default_labels(3)
    )
    save_bundle(tmp_path / "bundle", create_model(arch, **VIT), config)
    (tmp_path / "photos").mkdir()
    for index in range(4):
        pixels = np.random.default_rng(index).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{index % 3}_{index}.png")
    document = storage.measure(tmp_path / "photos", [tmp_path / "bundle"], tmp_path / "work", 0.0)
    (found,) = document["bundles"]
    assert (found["arch"], found["structured_layers"]) == (arch, 0)
    rows = {row["storage"]: row for row in found["rows"]}
    assert tuple(rows) == STORAGES
    assert rows["int8"]["layers"] == {"int8": 6}
    kl = {name: row["measured"]["kl"] for name, row in rows.items()}
    assert kl["int8"] > kl["bfloat16"] > kl["float16"] > kl["float32"] == 0
    assert {row["measured"]["images"] for row in rows.values()} == {4}
    assert rows["int8"]["bytes_on_disk"] < rows["bfloat16"]["bytes_on_disk"] < rows["float32"]["bytes_on_disk"]
    resident = {name: row["resident_bytes"] for name, row in rows.items()}
    assert resident["float32"] == resident["bfloat16"] == resident["float16"]
    assert resident["int8"]["float32"] < 0.5 * resident["float32"]["float32"]
    ways = {f"{dtype}, {images}" for dtype in storage.DTYPES for images in storage.BATCH_SIZES}
    assert all(row["cpu_ms_per_image"].keys() == ways for row in rows.values())
    assert str(tmp_path) not in json.dumps(document)
