"""The site's own parts: drawings that load nothing, pages made of code, links that lead somewhere, the navigation."""

import re
import runpy
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from .blocks import PAGES, ROOT

PICTURES = ROOT / "docs" / "pictures"
SITE_LINKS = ROOT / "docs" / "generate" / "links.py"
LINK = re.compile(r"\]\(([^()\s]+)\)")


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
    made = {
        "index.md",
        "changes.md",
        "contributing.md",
        "reporting.md",
        "reference/commands.md",
        "reference/http.md",
        "reference/python.md",
    }
    assert len(nav) == len(set(nav))
    assert set(nav) == {Path(page).name for page in PAGES if page != "README.md"} | made


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_every_local_link_of_a_page_leads_to_a_file_and_a_heading(page: str) -> None:
    for link in LINK.findall(_prose(ROOT / page)):
        path, _, heading = unquote(link).partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        assert not heading or target.suffix != ".md" or heading in set(_anchors(target)), f"{page}: {link}"


def test_what_a_built_page_points_at_and_the_site_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.svg").touch()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">a</h1><img alt="x" src="a.svg"><a href="#top">b</a><a href="https://example.org/c">c</a>'
        '<a href="folder/page.html#below">d</a><img src="gone.svg"><a href="#nowhere">e</a>'
    )
    (tmp_path / "folder" / "page.html").write_text(
        '<h2 id="below">f</h2><a href="../index.html#top">g</a><link rel="icon" href="/a.svg"><a href="/b.html">h</a>'
    )
    assert list(runpy.run_path(str(SITE_LINKS))["broken_links"](tmp_path)) == [
        "folder/page.html: /b.html is not in the site",
        "index.html: #nowhere has no such heading",
        "index.html: gone.svg is not in the site",
    ]


def _prose(path: Path) -> str:
    """A page without fenced blocks and code."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def _anchors(path: Path) -> Iterator[str]:
    """Names of a page's headings in addresses, as mkdocs makes them."""
    for heading in re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        yield re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", words).strip().lower())
