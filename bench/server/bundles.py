"""Bundles made on the spot, weights random: a tiny ViT that keeps the model out of the way, or a real one."""

from pathlib import Path
from typing import Any

import torch

from ...models import BundleConfig, create_model, default_preprocess, save_bundle
from ...models.bundle.labels import default_labels

TINY_SIZE, TINY_CLASSES = 32, 10
TINY: dict[str, Any] = {"img_size": TINY_SIZE, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4}
TINY_PREPROCESS: dict[str, Any] = {
    "size": TINY_SIZE,
    "crop_pct": 1.0,
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
}


def tiny_bundle(path: Path, classes: int = TINY_CLASSES) -> Path:
    """Write a ViT of two blocks on 32 x 32 pixels, which takes half a millisecond; the same weights each time."""
    arch_args = {"num_classes": classes, **TINY}
    return _saved(path, "deit_tiny_patch16_224", arch_args, TINY_PREPROCESS, classes)


def random_bundle(path: Path, arch: str) -> Path:
    """Write an architecture as it is known, dense."""
    return _saved(path, arch, {}, default_preprocess(arch), 1000)


def _saved(path: Path, arch: str, arch_args: dict[str, Any], preprocess: dict[str, Any], classes: int) -> Path:
    torch.manual_seed(0)
    config = BundleConfig(arch=arch, arch_args=arch_args, preprocess=preprocess)
    save_bundle(path, create_model(arch, **arch_args), config, default_labels(classes))
    return path
