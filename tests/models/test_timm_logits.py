"""ViT and DeiT through timm's classes, and every family's serving form, against logits of the original code."""

from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from milkweed.models import create_model
from milkweed.models.inference import prepare_for_inference


@pytest.mark.parametrize("name", ["vit_small_patch16_224", "deit_tiny_patch16_224"])
def test_logits_are_timms(name: str, fill: ModuleType, golden: dict[str, np.ndarray], images: Tensor) -> None:
    model = fill.fill(create_model(name))
    with torch.inference_mode():
        got = model(images).numpy()
    assert np.abs(got - golden[f"{name}__fp64"]).max() <= 1e-5


@pytest.mark.parametrize(
    ("name", "tolerance"), [("vitae_basic_tiny", 1e-5), ("vitae_basic_small", 2e-5), ("deit_tiny_patch16_224", 1e-5)]
)
def test_the_serving_form_gives_the_originals_logits(
    name: str, tolerance: float, fill: ModuleType, golden: dict[str, np.ndarray], images: Tensor
) -> None:
    model = prepare_for_inference(fill.fill(create_model(name)))
    with torch.inference_mode():
        got = model(images).numpy()
    assert np.abs(got - golden[f"{name}__fp64"]).max() <= tolerance
