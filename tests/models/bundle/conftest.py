"""The model that `tiny_bundle` holds."""

import pytest
import torch
from torch import nn

from milkweed.models import BundleConfig, create_model


@pytest.fixture
def model(tiny_config: BundleConfig) -> nn.Module:
    """With the weights of `tiny_bundle`."""
    torch.manual_seed(1)
    return create_model(tiny_config.arch, layer_specs=tiny_config.structure, **tiny_config.arch_args)
