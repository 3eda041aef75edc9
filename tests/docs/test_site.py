"""The site's own parts: drawings that load nothing, pages made of code, every page in the navigation."""

import importlib.util
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest
import torch
import typer
import yaml

from milkweed.cli.app import build_app
from milkweed.kernels.reference import monarch_to_dense

from .blocks import PAGES, ROOT

GENERATE = ROOT / "docs" / "generate"


def module(name: str) -> ModuleType:
    """A script of docs/generate."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", GENERATE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


PICTURES = ROOT / "docs" / "pictures"


@pytest.mark.parametrize("name", sorted(path.name for path in PICTURES.glob("*.svg")))
def test_a_drawing_loads_nothing(name: str) -> None:
    drawn = (PICTURES / name).read_text(encoding="utf-8")
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script", drawn)
    ET.fromstring(drawn)


def test_the_drawn_factors_multiply_to_the_layer() -> None:
    cells = re.findall(r'<rect x="(\d+)" y="(\d+)" width="8" height="8"', (PICTURES / "monarch.svg").read_text())
    dense, out, left, middle, right = (torch.zeros(16, 16, dtype=torch.float64) for _ in range(5))
    for x, y in cells:
        for matrix, first in zip((dense, out, left, middle, right), (40, 290, 460, 630, 800), strict=True):
            if first <= int(x) < first + 144:
                matrix[(int(y) - 60) // 9, (int(x) - first) // 9] = 1
    w1, w2 = torch.randn(2, 4, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    right[right == 1] = torch.block_diag(*w1)[right == 1]
    left[left == 1] = torch.block_diag(*w2)[left == 1]
    assert torch.equal(dense, torch.ones(16, 16, dtype=torch.float64))
    torch.testing.assert_close(out @ left @ middle @ right, monarch_to_dense(w1, w2))


def test_every_command_is_in_the_reference() -> None:
    page = module("reference").commands_page()
    command = typer.main.get_command(build_app())
    for name, inner in command.commands.items():  # type: ignore[attr-defined]
        for below in getattr(inner, "commands", {None: inner}):
            assert f"\n## milkweed {name}{f' {below}' if below else ''}\n" in page
    assert "| `--top-k N` | Classes an answer. [5] |" in page


def test_every_path_is_in_the_reference() -> None:
    page = module("reference").http_page()
    for path in ("POST /classify", "GET /livez", "GET /readyz", "GET /v1/models", "GET /metrics"):
        assert f"\n## {path}\n" in page
    assert "[ClassifyAnswer](#classifyanswer)" in page


def test_every_page_is_in_the_navigation_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = re.findall(r"[\w/-]+\.md$", yaml.dump(yaml.safe_load(text)["nav"]), re.MULTILINE)
    made = {"index.md", "changes.md", "reference/commands.md", "reference/http.md", "reference/python.md"}
    assert len(nav) == len(set(nav))
    assert set(nav) == {Path(page).name for page in PAGES if page != "README.md"} | made
