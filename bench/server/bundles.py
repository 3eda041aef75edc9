"""Bundles made on the spot, weights random: a tiny ViT that keeps the model out of the way, or a real one."""

from pathlib import Path
from typing import Any

import torch

from ...models import BundleConfig, create_model, default_preprocess, save_bundle
from ...models.bundle.labels import default_labels

TINY_SIZE, TINY_CLASSES = 32, 10

TINY: dict[str, Any] = {
    "num_classes": TINY_CLASSES,
    "img_size": TINY_SIZE,
    "patch_size": 8,
    "embed_dim": 64,
    "depth": 2,
    "num_heads": 4,
}
"""A ViT of two blocks on 32 x 32 pixels: half a millisecond."""

TINY_PREPROCESS: dict[str, Any] = {
    "size": TINY_SIZE,
    "crop_pct": 1.0,
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
}

_VIT = "deit_tiny_patch16_224"


def tiny_bundle(path: Path) -> Path:
    """Write the tiny ViT; the same weights each time."""
    torch.manual_seed(0)
    config = BundleConfig(arch=_VIT, arch_args=TINY, preprocess=TINY_PREPROCESS)
    save_bundle(path, create_model(_VIT, **TINY), config, default_labels(TINY_CLASSES))
    return path


def random_bundle(path: Path, arch: str) -> Path:
    """Write an architecture as it is known, dense."""
    torch.manual_seed(0)
    model = create_model(arch)
    config = BundleConfig(arch=arch, arch_args={}, preprocess=default_preprocess(arch))
    save_bundle(path, model, config, default_labels(1000))
    return path
