"""The commands take a bundle of a narrower model as any other, and keep its widths."""

from pathlib import Path

import pytest
import torch

from milkweed.models import create_model, read_config, save_bundle

from ...models.tiny import TINY_VIT, config_of
from ...support.command import Milkweed

WIDTHS = {"blocks.0.attn": 4, "blocks.0.mlp": 40, "blocks.1.mlp": 48}


@pytest.fixture
def narrow(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = create_model("deit_tiny_patch16_224", num_classes=5, widths=WIDTHS, **TINY_VIT)
    save_bundle(tmp_path / "narrow", model, config_of(model, "deit_tiny_patch16_224", TINY_VIT, 5, widths=WIDTHS))
    return tmp_path / "narrow"


def test_inspect_says_what_is_narrower(milkweed: Milkweed, narrow: Path, bundle: Path) -> None:
    assert milkweed("inspect", narrow, "--json").document["widths"] == WIDTHS
    told = "2 MLPs of 40 to 48 hidden units, 1 attention with queries and keys of 4"
    assert f"narrower       {told}\n" in milkweed("inspect", narrow).out
    assert milkweed("inspect", bundle, "--json").document["widths"] == {}
    assert "narrower" not in milkweed("inspect", bundle).out


def test_commands_that_make_bundles_keep_the_widths(milkweed: Milkweed, narrow: Path, tmp_path: Path) -> None:
    milkweed("convert", narrow, tmp_path / "int8", "--storage", "int8").ok()
    milkweed("compress", narrow, tmp_path / "monarch", "--layers", "mlp", "--nblocks", "4").ok()
    milkweed("densify", tmp_path / "monarch", tmp_path / "dense").ok()
    for name in ("int8", "monarch", "dense"):
        assert read_config(tmp_path / name).widths == WIDTHS
        milkweed("inspect", tmp_path / name).ok(quiet=True)


def test_export_takes_it(milkweed: Milkweed, narrow: Path, tmp_path: Path) -> None:
    milkweed("export", narrow, "--onnx", tmp_path / "model.onnx").ok()
