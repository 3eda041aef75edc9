"""Bundles of narrower models: saved and loaded as they are, older ones unchanged, widths checked."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.widths import Widths
from milkweed.models.bundle.bundle import load_bundle, save_bundle
from milkweed.models.bundle.reading import read_config
from milkweed.models.errors import BundleError
from milkweed.models.layers.token_plan import TokenPlan

from ..tiny import TINY_VIT, config_of
from .edits import edit_config, refuse

ARCH = "deit_tiny_patch16_224"
WIDTHS = {"blocks.0.attn": 5, "blocks.1.mlp": 40}


def made(widths: Widths) -> nn.Module:
    torch.manual_seed(0)
    return create_model(ARCH, num_classes=5, widths=widths, tokens=TokenPlan(class_last=True), **TINY_VIT)


def saved(path: Path, widths: Widths) -> Path:
    model = made(widths)
    save_bundle(path, model, config_of(model, ARCH, TINY_VIT, 5, widths=widths, tokens=TokenPlan(class_last=True)))
    return path


def test_a_narrower_model_is_saved_and_loaded(tmp_path: Path) -> None:
    path = saved(tmp_path / "narrow", WIDTHS)
    model, config = load_bundle(path)
    assert config.widths == WIDTHS == json.loads((path / "config.json").read_text())["widths"]
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(model(images), made(WIDTHS)(images))


def test_a_bundle_of_all_widths_is_what_it_was(tmp_path: Path) -> None:
    path = saved(tmp_path / "plain", {})
    assert "widths" not in json.loads((path / "config.json").read_text())
    assert read_config(path).widths == {}


def test_a_model_that_is_wider_than_its_config_says_is_not_saved(tmp_path: Path) -> None:
    model = made(WIDTHS)
    config = config_of(
        model, ARCH, TINY_VIT, 5, widths={**WIDTHS, "blocks.1.mlp": 48}, tokens=TokenPlan(class_last=True)
    )
    with pytest.raises(BundleError, match=r"blocks.1.mlp.fc1.weight has shape \[40, 32\], the model needs \[48, 32\]"):
        save_bundle(tmp_path / "out", model, config)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("widths", "message"), [
    ([], "config.json: widths [] must be an object"),
    ({"blocks.0.mlp": True}, "config.json: widths: 'blocks.0.mlp': True must be a whole number above 0"),
    ({"blocks.0.mlp": -3}, "config.json: widths: 'blocks.0.mlp': -3 must be a whole number above 0"),
    ({"head": 3}, "widths: 'head' is neither an MLP nor an attention that can be narrower"),
    ({"blocks.1.mlp": 39}, "blocks.0.attn.qkv.weight has shape [72, 32], the model needs [96, 32]"),
])  # fmt: skip
def test_widths_that_do_not_fit_are_refused(tmp_path: Path, widths: Any, message: str) -> None:
    path = saved(tmp_path / "narrow", WIDTHS)
    edit_config(path, lambda document: document.update(widths=widths))
    refuse(path, message)
