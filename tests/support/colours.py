"""Pictures of three colours and a bundle that tells them apart: fixtures for what trains, compresses or measures."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from milkweed.models.architectures.registry import create_model
from milkweed.models.bundle.bundle import save_bundle
from milkweed.models.bundle.config import BundleConfig
from milkweed.models.bundle.labels import Label

PREPROCESS = {"size": 16, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}
COLOURS = {"blue": (30, 40, 200), "green": (40, 190, 50), "red": (210, 40, 30)}


@pytest.fixture(scope="session")
def colour_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve noisy pictures of each of three colours, in a folder each; not to be changed."""
    root = tmp_path_factory.mktemp("colours")
    for number, (name, colour) in enumerate(COLOURS.items()):
        (root / name).mkdir()
        for index in range(12):
            noise = np.random.default_rng(100 * number + index).normal(0, 30, (16, 16, 3))
            Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(root / name / f"{index}.png")
    return root


@pytest.fixture(scope="session")
def loose_photos(tmp_path_factory: pytest.TempPathFactory, colour_photos: Path) -> Path:
    """The same pictures in one folder, under names that tell no class, and one that cannot be read."""
    root = tmp_path_factory.mktemp("loose")
    for number, path in enumerate(sorted(colour_photos.rglob("*.png"))):
        (root / f"{number:02d}.png").write_bytes(path.read_bytes())
    (root / "07-cut.png").write_bytes(path.read_bytes()[:100])
    return root


@pytest.fixture(scope="session")
def colour_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense ViT of 16 px for three colours, whose answers depend on every layer; not to be changed."""
    options = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 3}
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch16_224", **options).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(40 if name == "head.weight" else 2)
    config = BundleConfig(
        arch="vit_tiny_patch16_224",
        arch_args=options,
        preprocess=PREPROCESS,
        labels=tuple(Label(name, name) for name in COLOURS),
    )
    path = tmp_path_factory.mktemp("bundles") / "colours"
    save_bundle(path, model, config)
    return path
