"""A headless Chromium for the tests of the page, and what it saw of each page."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
WAIT_MS = 120_000

# What the page makes of blobs, and what its policy stopped.
_WATCH = """
window.seen = { blobs: new Set(), made: 0, violations: [] };
const make = URL.createObjectURL, end = URL.revokeObjectURL;
URL.createObjectURL = (blob) => { const url = make(blob); seen.blobs.add(url); seen.made++; return url; };
URL.revokeObjectURL = (url) => { seen.blobs.delete(url); end(url); };
document.addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI, sourceFile }) =>
  seen.violations.push(`${violatedDirective} ${blockedURI} ${sourceFile}`));
"""


@contextmanager
def chromium() -> Iterator["Browser"]:
    """The machine's Chromium; the tests that want it are skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'milkweed[test]'")
    path = os.environ.get("MILKWEED_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed, and MILKWEED_CHROMIUM names none")
    api.expect.set_options(timeout=WAIT_MS)
    with api.sync_playwright() as playwright:
        # In a container its sandbox needs rights that tests have not; nothing but our own page is opened.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visited(browser: "Browser", url: str, *, arrive: bool = True, **options: Any) -> Iterator["Page"]:
    """A tab in a fresh context, with `arrive` at `url` and ready. At its end no request has left that origin, nothing
    went against the page's policy, and the console has no error but that of requests that were refused.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(WAIT_MS)
    context.add_init_script(_WATCH)
    page = context.new_page()
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type in ("error", "warning") else None)
    try:
        if arrive:
            page.goto(url)
            page.locator("#state", has_text="ready").wait_for()
        yield page
        violations = page.evaluate("() => window.seen.violations")
    finally:
        context.close()
    origin = urlsplit(url).netloc
    assert not [request for request in requests if urlsplit(request.removeprefix("blob:")).netloc != origin]
    assert violations == []
    assert not [error for error in errors if not error.startswith("Failed to load resource")]
