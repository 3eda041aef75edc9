"""docs/compression.md: its recipe is one, and its table has every key of a recipe's file with its default."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from milkweed.compress.job import RecipeFile
from milkweed.compress.recipe import DistillationConfig, QuantizationConfig, Structure, WidthRatios
from milkweed.models.bundle.strict_json import parse_json
from milkweed.models.layers.token_plan import TokenPlan

from .blocks import ROOT, blocks_of

PAGE = "docs/compression.md"
PARTS = {
    "structure": Structure,
    "tokens": TokenPlan,
    "widths": WidthRatios,
    "quantization": QuantizationConfig,
    "distillation": DistillationConfig,
}
ROW = re.compile(r"^\| (?:`(\w+)` )?\| `(\w+)` \| (?:`(.*?)`|none) \|", re.MULTILINE)


def test_the_recipe_of_the_page_is_one(tmp_path: Path) -> None:
    (block,) = (block for block in blocks_of(PAGE) if block.language == "json")
    (tmp_path / "monarch.json").write_text(block.text)
    read = RecipeFile.read(tmp_path / "monarch.json")
    assert (read.arch, str(read.recipe)) == (
        "deit_tiny_patch16_224",
        "Monarch 4 blocks in mlp, class token last, merge 16 % every 4 blocks from 4, class attention 0.1, distilled, "
        "per-channel int8",
    )


@pytest.mark.parametrize("part", PARTS)
def test_the_table_has_each_key_with_its_default(part: str) -> None:
    defaults = {member.name: getattr(PARTS[part](), member.name) for member in fields(PARTS[part])}
    assert _table()[part] == {name: _as_json(value) for name, value in defaults.items()}


def _table() -> dict[str, dict[str, Any]]:
    """The defaults of the page's table, by part and key."""
    table: dict[str, dict[str, Any]] = {}
    part = ""
    for begins, key, default in ROW.findall((ROOT / PAGE).read_text(encoding="utf-8")):
        part = begins or part
        table.setdefault(part, {})[key] = parse_json(default.encode()) if default else None
    return table


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
