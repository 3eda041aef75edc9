"""The commands take a bundle of a model that computes fewer tokens as any other, and keep its plan."""

import re
from pathlib import Path

import pytest
import torch

from milkweed.models import create_model, read_config, save_bundle
from milkweed.models.layers.token_merging import TokenMerging, TokenPlan

from ...models.tiny import TINY_VIT, config_of
from ...support.command import Milkweed

PLAN = TokenPlan(TokenMerging(0, 1, 0.3), True)


@pytest.fixture
def merging(tmp_path: Path) -> Path:
    """A bundle of a ViT that merges tokens in the first of two blocks, and reads one in the second."""
    torch.manual_seed(0)
    model = create_model("deit_tiny_patch16_224", num_classes=5, tokens=PLAN, **TINY_VIT)
    save_bundle(tmp_path / "merging", model, config_of(model, "deit_tiny_patch16_224", TINY_VIT, 5, tokens=PLAN))
    return tmp_path / "merging"


def test_inspect_says_which_tokens_are_computed(milkweed: Milkweed, merging: Path, bundle: Path) -> None:
    assert milkweed("inspect", merging, "--json").document["tokens"] == PLAN.to_dict()
    assert f"tokens         {PLAN.summary}\n" in milkweed("inspect", merging).out
    assert milkweed("inspect", bundle, "--json").document["tokens"] == {}
    assert "tokens  " not in milkweed("inspect", bundle).out


def test_commands_that_make_bundles_keep_the_plan(milkweed: Milkweed, merging: Path, tmp_path: Path) -> None:
    milkweed("convert", merging, tmp_path / "int8", "--storage", "int8").ok()
    milkweed("compress", merging, tmp_path / "monarch", "--layers", "mlp", "--nblocks", "4").ok()
    milkweed("densify", tmp_path / "monarch", tmp_path / "dense").ok()
    for name in ("int8", "monarch", "dense"):
        assert read_config(tmp_path / name).tokens == PLAN
        milkweed("inspect", tmp_path / name).ok(quiet=True)


def test_export_says_the_kl(milkweed: Milkweed, merging: Path, tmp_path: Path) -> None:
    ran = milkweed("export", merging, "--onnx", tmp_path / "model.onnx").ok()
    number = r"[0-9.e-]+"
    assert re.search(rf"verified   KL {number}, the median image's logits within {number} of the largest", ran.out)
