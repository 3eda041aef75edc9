"""Bundles of models that compute fewer tokens: saved and loaded as they are, told apart, checked."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.token_blocks import apply_token_plan, token_plan_of
from milkweed.models.bundle.bundle import load_bundle, save_bundle
from milkweed.models.bundle.reading import read_config
from milkweed.models.errors import BundleError
from milkweed.models.layers.token_plan import ALL_TOKENS, TokenMerging, TokenPlan

from ..tiny import TINY_VIT, TINY_VITAE, config_of
from .edits import edit_config, refuse

ARCH = "deit_tiny_patch16_224"
ARGS: dict[str, Any] = {**TINY_VIT, "depth": 4}
PLAN = TokenPlan(TokenMerging(1, 1, 0.3, 0.1), True)


def plain() -> nn.Module:
    torch.manual_seed(0)
    return create_model(ARCH, num_classes=5, **ARGS)


def saved(path: Path, plan: TokenPlan) -> Path:
    model = apply_token_plan(plain(), plan)
    save_bundle(path, model, config_of(model, ARCH, ARGS, 5, tokens=plan))
    return path


@pytest.mark.parametrize("plan", [PLAN, TokenPlan(class_last=True), TokenPlan(TokenMerging(1))])
def test_a_plan_is_saved_and_applied_on_loading(tmp_path: Path, plan: TokenPlan) -> None:
    model, config = load_bundle(saved(tmp_path / "merged", plan))
    assert config.tokens == token_plan_of(model) == plan
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(model(images), apply_token_plan(plain(), plan)(images))
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tokens"] == plan.to_dict()


def test_a_plan_of_cells_is_saved_and_applied_on_loading(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, plan = create_model("vitae_basic", num_classes=5, **TINY_VITAE), TokenPlan(TokenMerging(1, 1, 0.3))
    apply_token_plan(model, plan)
    save_bundle(tmp_path / "merged", model, config_of(model, "vitae_basic", TINY_VITAE, 5, tokens=plan))
    other, config = load_bundle(tmp_path / "merged")
    assert config.tokens == token_plan_of(other) == plan
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(other(images), model(images))


def test_a_bundle_of_all_tokens_is_what_it_was(tmp_path: Path) -> None:
    path = saved(tmp_path / "plain", ALL_TOKENS)
    assert "tokens" not in json.loads((path / "config.json").read_text())
    assert read_config(path).tokens == ALL_TOKENS


def test_a_model_that_computes_other_tokens_than_its_config_says_is_not_saved(tmp_path: Path) -> None:
    model = apply_token_plan(plain(), PLAN)
    for plan in (ALL_TOKENS, TokenPlan(class_last=True)):
        with pytest.raises(BundleError, match="tokens: the model does not compute the tokens that the config says"):
            save_bundle(tmp_path / "out", model, config_of(model, ARCH, ARGS, 5, tokens=plan))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("tokens", "message"), [
    ([], "tokens [] must be an object"),
    ({"last": True}, "tokens: unknown member 'last': must be one of class_last, merging"),
    ({"merging": {"share": 0.6}}, "merging: share 0.6 must be above 0 and at most 0.5"),
    ({"merging": {"start": 1e9}}, "merging: start 1000000000.0 must be a whole number from 0 to 255"),
    ({"merging": {"start": 3}},
     "tokens of VisionTransformer: merging: start 3 must be below 3: the last block never merges"),
])  # fmt: skip
def test_plans_that_cannot_be_are_refused(tmp_path: Path, tokens: Any, message: str) -> None:
    path = saved(tmp_path / "merged", PLAN)
    edit_config(path, lambda document: document.update(tokens=tokens))
    refuse(path, f"config.json: {message}" if "of VisionT" not in message else message)
