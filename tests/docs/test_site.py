"""The site's own parts: drawings that load nothing, pages made of code, every page in the navigation."""

import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from .blocks import PAGES, ROOT

PICTURES = ROOT / "docs" / "pictures"


@pytest.mark.parametrize("name", sorted(path.name for path in PICTURES.glob("*.svg")))
def test_a_drawing_loads_nothing(name: str) -> None:
    drawn = (PICTURES / name).read_text(encoding="utf-8")
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script", drawn)
    ET.fromstring(drawn)


def test_every_path_is_in_the_reference() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate" / "reference.py"))["http_page"]()
    for path in ("POST /classify", "GET /livez", "GET /readyz", "GET /v1/models", "GET /metrics"):
        assert f"\n## {path}\n" in page
    assert "[ClassifyAnswer](#classifyanswer)" in page


def test_every_page_is_in_the_navigation_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = re.findall(r"[\w/-]+\.md$", yaml.dump(yaml.safe_load(text)["nav"]), re.MULTILINE)
    made = {"index.md", "changes.md", "reference/commands.md", "reference/http.md", "reference/python.md"}
    assert len(nav) == len(set(nav))
    assert set(nav) == {Path(page).name for page in PAGES if page != "README.md"} | made
