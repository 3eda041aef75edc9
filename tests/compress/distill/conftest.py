"""A tiny model, dense and with the nearest Monarch matrices, and images to train on."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.models import create_model, layer_specs_for, select_linears
from milkweed.models.projection.replacement import project_layer

from ...models.conftest import tiny_vitae as tiny_vitae

VIT: dict[str, Any] = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 6}


@dataclass(frozen=True)
class Case:
    """A dense model, its projection, and images to learn on."""

    dense: nn.Module
    compressed: nn.Module
    images: Tensor


@pytest.fixture
def case(one_thread: None) -> Case:
    """The same at every call: weights large enough that the projection costs answers."""
    torch.manual_seed(0)
    dense = create_model("deit_tiny_patch16_224", **VIT).eval()
    with torch.no_grad():
        for name, parameter in dense.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(40 if name == "head.weight" else 8)
    dense.requires_grad_(False)
    compressed = copy.deepcopy(dense)
    for name, spec in layer_specs_for(compressed, select_linears(compressed, ["mlp"]), nblocks=4).items():
        project_layer(compressed, name, spec)
    return Case(dense, compressed.eval(), torch.randn(40, 3, 16, 16, generator=torch.Generator().manual_seed(1)))
