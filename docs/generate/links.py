"""Finds what a built site points at and does not have: pages, pictures, styles, scripts, headings."""

import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

TARGET = re.compile(r"<[a-z][^>]*?\s(?:href|src)=\"([^\"]*)\"", re.IGNORECASE)
ANCHOR = re.compile(r"\s(?:id|name)=\"([^\"]+)\"", re.IGNORECASE)


def broken_links(site: Path) -> Iterator[str]:
    """A sentence for each local link of a page of `site` whose file, or whose heading in it, is not there."""

    @cache
    def anchors(page: Path) -> frozenset[str]:
        return frozenset(unescape(name) for name in ANCHOR.findall(page.read_text(encoding="utf-8")))

    for page in sorted(site.rglob("*.html")):
        for link in sorted(set(TARGET.findall(page.read_text(encoding="utf-8")))):
            url = urlsplit(unescape(link))
            if url.scheme or url.netloc:
                continue
            path = unquote(url.path)
            target = site / path.lstrip("/") if path.startswith("/") else page.parent / path if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{page.relative_to(site)}: {link} is not in the site"
            elif url.fragment and target.suffix == ".html" and unquote(url.fragment) not in anchors(target):
                yield f"{page.relative_to(site)}: {link} has no such heading"
