"""Fixtures of the model tests: tiny models of each family, a bundle of one, and inputs that compression is tried on."""

import copy
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from milkweed.models.architectures.registry import create_model
from milkweed.models.bundle.bundle import save_bundle
from milkweed.models.bundle.config import BundleConfig
from milkweed.models.layers.select import layer_specs_for, replace_linears, select_linears
from milkweed.models.projection.statistics import InputStatistics

from .tiny import TINY_VIT, TINY_VITAE, config_of


@pytest.fixture
def tiny_vitae() -> dict[str, Any]:
    return dict(TINY_VITAE)


@pytest.fixture
def tiny_vit() -> dict[str, Any]:
    return dict(TINY_VIT)


@pytest.fixture(scope="session")
def saved_tiny_config() -> BundleConfig:
    """Made once; `tiny_config` is a copy that a test may change."""
    torch.manual_seed(0)
    model = create_model("vitae_basic", num_classes=5, **TINY_VITAE)
    replace_linears(model, layer_specs_for(model, select_linears(model, ["mlp"]), nblocks=2))
    provenance = {"source": {"file": "x.pth", "sha256": "0" * 64}}
    return config_of(model, "vitae_basic", dict(TINY_VITAE), 5, provenance=provenance, metrics={"top1": 0.5})


@pytest.fixture(scope="session")
def saved_tiny_bundle(saved_tiny_config: BundleConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written once; `tiny_bundle` is a copy that a test may change."""
    config, path = saved_tiny_config, tmp_path_factory.mktemp("saved") / "tiny"
    torch.manual_seed(1)
    save_bundle(path, create_model(config.arch, layer_specs=config.structure, **config.arch_args), config)
    return path


@pytest.fixture
def tiny_config(saved_tiny_config: BundleConfig) -> BundleConfig:
    """The config of a ViTAE with two Monarch MLPs and five classes."""
    return copy.deepcopy(saved_tiny_config)


@pytest.fixture
def tiny_bundle(saved_tiny_bundle: Path, tmp_path: Path) -> Path:
    """A saved bundle of `tiny_config` with random weights."""
    torch.manual_seed(1)
    return Path(shutil.copytree(saved_tiny_bundle, tmp_path / "tiny"))


@pytest.fixture(scope="session")
def fill(shared: Path) -> ModuleType:
    """The module that derives weights from key names."""
    spec = importlib.util.spec_from_file_location("fill_by_key", shared / "golden" / "fill_by_key.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def golden(shared: Path) -> dict[str, np.ndarray]:
    with np.load(shared / "golden" / "vitae_fill_logits.npz") as data:
        return {key.lower(): data[key] for key in data.files}


@pytest.fixture(scope="session")
def images(fill: ModuleType) -> Tensor:
    return torch.from_numpy(fill.make_input())


Inputs = Callable[..., InputStatistics]


def statistics_of(x: Tensor) -> InputStatistics:
    """Compute the statistics of inputs (tokens, features) by their definition."""
    mean = x.mean(0)
    return InputStatistics(mean, x.T @ x / len(x) - mean.outer(mean), len(x))


@pytest.fixture
def inputs() -> Inputs:
    """Statistics of so many strongly correlated features with a mean; the same for the same arguments."""

    def make(features: int, *, seed: int = 0, directions: int | None = None) -> InputStatistics:
        generator = torch.Generator().manual_seed(seed)
        common = torch.randn(directions or features, features, generator=generator, dtype=torch.float64)
        sizes = 0.8 ** torch.arange(len(common), dtype=torch.float64)
        x = torch.randn(2000, len(common), generator=generator, dtype=torch.float64) * sizes @ common
        return statistics_of(x + torch.randn(features, generator=generator, dtype=torch.float64))

    return make


def make_vit() -> nn.Module:
    """A ViT of two blocks, 32 wide, whose answers depend on every layer."""
    torch.manual_seed(0)
    model = create_model("deit_tiny_patch16_224", num_classes=6, **TINY_VIT).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(40 if name == "head.weight" else 2)
    return model.requires_grad_(False)


@pytest.fixture
def vit() -> nn.Module:
    return make_vit()


@pytest.fixture
def pictures() -> Tensor:
    """100 smooth random images, normalised, (100, 3, 32, 32)."""
    noise = torch.randn(100, 3, 6, 6, generator=torch.Generator().manual_seed(5))
    return nn.functional.interpolate(noise, size=(32, 32), mode="bicubic").contiguous()
