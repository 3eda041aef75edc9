"""Bundles of models that compute fewer tokens or are narrower: saved and loaded as they are, told apart, checked."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.token_blocks import token_plan_of
from milkweed.models.bundle.bundle import load_bundle, save_bundle
from milkweed.models.bundle.reading import read_config
from milkweed.models.errors import BundleError
from milkweed.models.layers.token_plan import ALL_TOKENS, TokenMerging, TokenPlan

from ..tiny import TINY_VIT, TINY_VITAE, config_of
from .edits import edit_config, refuse

VIT = ("deit_tiny_patch16_224", {**TINY_VIT, "depth": 4})
VITAE = ("vitae_basic", TINY_VITAE)
MERGING: dict[str, Any] = {"tokens": TokenPlan(TokenMerging(1, 1, 0.3, 0.1), True)}
NARROW: dict[str, Any] = {
    "widths": {"blocks.0.attn": 5, "blocks.1.mlp": 40},
    "tokens": TokenPlan(class_last=True),
}


def made(arch: tuple[str, dict[str, Any]], options: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return create_model(arch[0], num_classes=5, **options, **arch[1])


def saved(path: Path, arch: tuple[str, dict[str, Any]], options: dict[str, Any], **said: Any) -> Path:
    """Write the bundle of a model; its config says the same, but for what is given."""
    model = made(arch, options)
    save_bundle(path, model, config_of(model, *arch, 5, **{**options, **said}))
    return path


@pytest.mark.parametrize(("arch", "options"), [
    (VIT, MERGING), (VIT, {"tokens": TokenPlan(TokenMerging(1))}), (VIT, NARROW),
    (VITAE, {"tokens": TokenPlan(TokenMerging(1, 1, 0.3))}),
])  # fmt: skip
def test_it_is_saved_and_applied_on_loading(
    tmp_path: Path, arch: tuple[str, dict[str, Any]], options: dict[str, Any]
) -> None:
    path = saved(tmp_path / "b", arch, options)
    model, config = load_bundle(path)
    document = json.loads((path / "config.json").read_text())
    assert config.tokens == token_plan_of(model) == options["tokens"]
    assert document["tokens"] == options["tokens"].to_dict()
    assert config.widths == document.get("widths", {}) == options.get("widths", {})
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(model(images), made(arch, options)(images))


def test_a_bundle_of_all_tokens_and_widths_is_what_it_was(tmp_path: Path) -> None:
    path = saved(tmp_path / "plain", VIT, {})
    assert not {"tokens", "widths"} & json.loads((path / "config.json").read_text()).keys()
    assert (read_config(path).tokens, read_config(path).widths) == (ALL_TOKENS, {})


@pytest.mark.parametrize(("options", "said", "message"), [
    (MERGING, {"tokens": ALL_TOKENS}, "tokens: the model does not compute the tokens that the config says"),
    (MERGING, {"tokens": TokenPlan(class_last=True)}, "tokens: the model does not compute the tokens"),
    (NARROW, {"widths": {**NARROW["widths"], "blocks.1.mlp": 48}},
     r"blocks.1.mlp.fc1.weight has shape \[40, 32\], the model needs \[48, 32\]"),
])  # fmt: skip
def test_another_model_than_its_config_says_is_not_saved(
    tmp_path: Path, options: dict[str, Any], said: dict[str, Any], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        saved(tmp_path / "out", VIT, options, **said)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("member", "value", "message"), [
    ("tokens", [], "config.json: tokens [] must be an object"),
    ("tokens", {"merging": {"start": 1e9}}, "config.json: merging: start 1000000000.0 must be a whole number from 0"),
    ("tokens", {"merging": {"start": 3}},
     "tokens of VisionTransformer: merging: start 3 must be below 3: the last block never merges"),
    ("widths", [], "config.json: widths [] must be an object"),
    ("widths", {"blocks.0.mlp": True}, "widths: layer 'blocks.0.mlp': True must be a whole number above 0"),
    ("widths", {"blocks.0.mlp": -3}, "config.json: widths: layer 'blocks.0.mlp': -3 must be a whole number above 0"),
    ("widths", {"head": 3}, "widths: 'head' is neither an MLP nor an attention that can be narrower"),
    ("widths", {"blocks.1.mlp": 39}, "blocks.0.attn.qkv.weight has shape [72, 32], the model needs [96, 32]"),
])  # fmt: skip
def test_what_cannot_be_or_does_not_fit_is_refused(tmp_path: Path, member: str, value: Any, message: str) -> None:
    path = saved(tmp_path / "narrow", VIT, NARROW)
    edit_config(path, lambda document: document.update({member: value}))
    refuse(path, message)
