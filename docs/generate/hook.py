"""What mkdocs does with the pages: adds those made from code, reads Markdown as GitHub does, refuses outside assets."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))
from reference import commands_page, http_page, python_page  # noqa: E402

PAGES: dict[str, Callable[[], str]] = {
    "index.md": lambda: _from_root("README.md"),
    "changes.md": lambda: _from_root("CHANGELOG.md"),
    "reference/commands.md": commands_page,
    "reference/http.md": http_page,
    "reference/python.md": python_page,
}
PICTURES = re.compile(r"\]\(\.\./(bench/results/[\w.-]+\.(?:svg|png))\)")
"""Plots that lie beside their figures, outside of docs/."""
OUTSIDE = re.compile(
    r"<(?:script|img|source|iframe)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*\bhref=\"?(?:https?:)?//"
)

PICTURE = re.compile(r"<img\b[^>]*\bsrc=\"([^\"]+)\"")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages made of code, and the plots that pages show."""
    for place, make in PAGES.items():
        files.append(File.generated(config, place, content=make()))
    pages = (path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    texts = "".join([*pages, *(file.content_string for file in files if file.src_uri in PAGES)])
    for picture in sorted(set(PICTURES.findall(texts))):
        files.append(File.generated(config, picture, abs_src_path=str(ROOT / picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """GitHub's Markdown as mkdocs reads it."""
    lines = github_lists(PICTURES.sub(r"](\1)", markdown)).split("\n")
    return "\n".join(_table_row(line) for line in lines)


def on_post_build(config: Any) -> None:
    """Nothing that a page shows or runs may come from elsewhere, and every picture of a page has to be there."""
    for page in sorted(Path(config["site_dir"]).rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        if found := OUTSIDE.search(text):
            raise PluginError(f"{page.name} loads from another host: {found[0]}")
        for source in PICTURE.findall(text):
            if not source.startswith("data:") and not (page.parent / unquote(source)).is_file():
                raise PluginError(f"{page.name} shows {source}, which is not in the site")


def github_lists(markdown: str) -> str:
    """A list may follow a paragraph without a gap, and is nested by its marker's width; here four spaces nest."""
    lines: list[str] = []
    fenced = False
    width = level = 0
    for line in markdown.splitlines():
        bare = line.lstrip(" ")
        indent = len(line) - len(bare)
        fenced ^= bare.startswith("```")
        marker = None if fenced else re.match(r"(?:[-*]|\d+\.) +(?=\S)", bare)
        if marker and (width or not indent):
            if not width and lines and lines[-1]:
                lines.append("")
            width = width or len(marker[0])
            level = indent // width
            indent = 4 * level
        elif width and bare and not indent and not lines[-1]:
            width = 0
        elif width and indent >= (level + 1) * width:  # below a point: its text, or code in it
            indent += (level + 1) * (4 - width)
        lines.append(" " * indent + bare)
    return "\n".join(lines) + "\n"


def _table_row(line: str) -> str:
    """GitHub needs a bar escaped in a cell's code, where mkdocs would show the escape."""
    return re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line


def _from_root(name: str) -> str:
    """A page of the repository's root, whose links begin one folder further up."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = text.replace("](CHANGELOG.md", "](changes.md").replace("](bench/results/", "](../bench/results/")
    return re.sub(r"(\]\(|src=\")docs/", r"\1", text)
