"""What mkdocs does with the pages: adds those made from code, reads Markdown as GitHub does, refuses broken links."""

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))
from links import broken_links  # noqa: E402
from reference import commands_page, http_page, python_page  # noqa: E402

PAGES: dict[str, Callable[[], str]] = {
    "index.md": lambda: _from_root("README.md"),
    "changes.md": lambda: _from_root("CHANGELOG.md"),
    "contributing.md": lambda: _from_root("CONTRIBUTING.md"),
    "reporting.md": lambda: _from_root("SECURITY.md"),
    "reference/commands.md": commands_page,
    "reference/http.md": http_page,
    "reference/python.md": python_page,
}
PICTURES = re.compile(r"\]\(\.\./([\w./-]+\.(?:svg|png|jpg))\)")
"""Pictures that pages show and that lie elsewhere in the repository, such as plots beside their figures."""
LOGO = ("pictures/icon.svg", "server/api/static/icon.svg")
"""The icon of the service's own page: its place in the site, and in the repository."""
FROM_ROOT = {
    "](CHANGELOG.md": "](changes.md",
    "](CONTRIBUTING.md": "](contributing.md",
    "](SECURITY.md": "](reporting.md",
    "[citation](CITATION.cff)": "`CITATION.cff`",
    "](bench/results/": "](../bench/results/",
}
"""Links of pages in the repository's root, and what they are in the site."""
OUTSIDE = re.compile(
    r"<(?:script|img|source|iframe)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*\bhref=\"?(?:https?:)?//"
)


def on_config(config: Any) -> None:
    """Link the repository from every page's foot, where pyproject.toml names it.

    Not by `repo_url`, for which the theme's script asks the repository's host for figures.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    urls = {label.lower(): url for label, url in project.get("urls", {}).items()}
    if url := urls.get("repository") or urls.get("source"):
        config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": url, "name": "Source code"}]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages made of code, the logo, and the pictures that pages show from outside docs/."""
    for place, make in PAGES.items():
        files.append(File.generated(config, place, content=make()))
    pages = (path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    texts = "".join([*pages, *(file.content_string for file in files if file.src_uri in PAGES)])
    for place, source in [LOGO, *((picture, picture) for picture in sorted(set(PICTURES.findall(texts))))]:
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """GitHub's Markdown as mkdocs reads it."""
    markdown = markdown.replace("](../CHANGELOG.md", "](changes.md")
    lines = github_lists(PICTURES.sub(r"](\1)", markdown)).split("\n")
    return "\n".join(_table_row(line) for line in lines)


def on_post_build(config: Any) -> None:
    """Nothing that a page shows or runs may come from elsewhere, and every local link and picture has to be there."""
    site = Path(config["site_dir"])
    for page in sorted(site.rglob("*.html")):
        if found := OUTSIDE.search(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page.name} loads from another host: {found[0]}")
    if broken := list(broken_links(site)):
        raise PluginError("\n".join(broken))


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
    for there, here in FROM_ROOT.items():
        text = text.replace(there, here)
    return re.sub(r"(\]\(|src=\")docs/", r"\1", text)
