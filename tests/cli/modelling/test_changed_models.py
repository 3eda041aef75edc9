"""The commands take a bundle of a model with narrower layers or fewer tokens as any other, and keep the change."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.models import create_model, read_config, save_bundle
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan

from ...models.structured import project_bundle
from ...models.tiny import TINY_VIT, config_of
from ...support.command import Milkweed

PLAN = TokenPlan(TokenMerging(0, 1, 0.3), True)
"""The first of two blocks merges tokens, and the second one reads one."""


@dataclass(frozen=True)
class Change:
    """A member of a bundle's config, its value and JSON form, and the line of `inspect`."""

    member: str
    value: Any
    document: Mapping[str, Any]
    line: str


WIDTHS = {"blocks.0.attn": 4, "blocks.0.mlp": 40, "blocks.1.mlp": 48}
CHANGES = (
    Change("tokens", PLAN, PLAN.to_dict(), f"tokens         {PLAN.summary}\n"),
    Change(
        *("widths", WIDTHS, WIDTHS),
        "narrower       2 MLPs of 40 to 48 hidden units, 1 attention with queries and keys of 4\n",
    ),
)


@pytest.fixture(params=CHANGES, ids=lambda change: change.member)
def change(request: pytest.FixtureRequest) -> Change:
    found: Change = request.param
    return found


@pytest.fixture
def changed(change: Change, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    given = {change.member: change.value}
    model = create_model("deit_tiny_patch16_224", num_classes=5, **given, **TINY_VIT)
    save_bundle(tmp_path / "changed", model, config_of(model, "deit_tiny_patch16_224", TINY_VIT, 5, **given))
    return tmp_path / "changed"


def test_inspect_says_what_was_changed(milkweed: Milkweed, change: Change, changed: Path, bundle: Path) -> None:
    assert milkweed("inspect", changed, "--json").document[change.member] == change.document
    assert change.line in milkweed("inspect", changed).out
    assert milkweed("inspect", bundle, "--json").document[change.member] == {}
    assert change.line.split()[0] + "  " not in milkweed("inspect", bundle).out


def test_commands_that_make_bundles_keep_it(milkweed: Milkweed, change: Change, changed: Path, tmp_path: Path) -> None:
    milkweed("convert", changed, tmp_path / "int8", "--storage", "int8").ok()
    project_bundle(changed, tmp_path / "monarch")
    milkweed("densify", tmp_path / "monarch", tmp_path / "dense").ok()
    for name in ("int8", "monarch", "dense"):
        assert getattr(read_config(tmp_path / name), change.member) == change.value
        milkweed("inspect", tmp_path / name).ok(quiet=True)


@pytest.mark.slow
def test_export_says_how_near_the_graph_is(milkweed: Milkweed, change: Change, changed: Path, tmp_path: Path) -> None:
    ran = milkweed("export", changed, "--onnx", tmp_path / "model.onnx").ok()
    number = r"[0-9.e-]+"
    merges = rf"verified   KL {number}, the median image's logits within {number} of the largest"
    assert bool(re.search(merges, ran.out)) is (change.member == "tokens")
