"""The tiny ViT's weights for the peers: the state dict of the bundle that our own server gets."""

from pathlib import Path

import torch

from ...models import load_bundle
from ..server.bundles import tiny_bundle


def export(folder: Path) -> tuple[Path, Path]:
    """Write the bundle and the state dict of the same weights; their places."""
    bundle = tiny_bundle(folder / "tiny")
    model, _ = load_bundle(bundle)
    weights = folder / "tiny.pt"
    torch.save({name: value.contiguous() for name, value in model.state_dict().items()}, weights)
    return bundle, weights
