"""Bundles made on the spot, weights random: a tiny ViT that keeps the model out of the way, or a real one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...models import BundleConfig, create_model, default_preprocess, save_bundle
from ...models.bundle.labels import default_labels
from ...models.layers.select import layer_specs_for, layer_specs_of, replace_linears, select_linears

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
    arch, arch_args = "deit_tiny_patch16_224", {"num_classes": classes, **TINY}
    config = BundleConfig(arch=arch, arch_args=arch_args, preprocess=TINY_PREPROCESS)
    return _saved(path, random_model(arch, **arch_args), config)


def random_bundle(path: Path, arch: str, model: nn.Module | None = None) -> Path:
    """Write an architecture as it is known, dense, or a model of it that has structured layers."""
    model = random_model(arch) if model is None else model
    config = BundleConfig(arch=arch, structure=layer_specs_of(model), preprocess=default_preprocess(arch))
    return _saved(path, model, config)


def random_model(arch: str, monarch: Sequence[str] | None = None, nblocks: int = 4, **arch_args: Any) -> nn.Module:
    """Make a model of an architecture, the same weights each time: dense, or with some layers Monarch."""
    torch.manual_seed(0)
    model = create_model(arch, **arch_args)
    if monarch is not None:
        replace_linears(model, layer_specs_for(model, select_linears(model, monarch), nblocks=nblocks))
    return model


def _saved(path: Path, model: nn.Module, config: BundleConfig) -> Path:
    save_bundle(path, model, config, default_labels(config.num_classes))
    return path
