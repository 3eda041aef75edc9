"""A tab that shows the page, what the tests do with it, and photos that the demo model knows."""

import base64
import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from PIL import Image, ImageDraw

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'milkweed[test]'")
from playwright.sync_api import expect as expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SHIP = (Path(__file__).resolve().parents[3] / "docs" / "pictures" / "ship.jpg").read_bytes()
SKY = (125, 180, 230)
BODY = '{"results": [{"predictions": [{"id": "a", "label": "a", "score": 1}]}]}'

# What the page makes of blobs, and what its policy stopped.
_WATCH = """
window.seen = { blobs: new Set(), made: 0, violations: [] };
const make = URL.createObjectURL, end = URL.revokeObjectURL;
URL.createObjectURL = (blob) => { const url = make(blob); seen.blobs.add(url); seen.made++; return url; };
URL.revokeObjectURL = (url) => { seen.blobs.delete(url); end(url); };
document.addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI, sourceFile }) =>
  seen.violations.push(`${violatedDirective} ${blockedURI} ${sourceFile}`));
"""
_TO_FILES = """(files) => {
  const transfer = new DataTransfer();
  for (const [name, data] of files) {
    transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name, { type: "image/png" }));
  }
  return transfer;
}"""


def _airplane() -> bytes:
    """A PNG of an airliner from the side, of 640 x 480 px."""
    image = Image.new("RGB", (640, 480), SKY)
    draw = ImageDraw.Draw(image)
    draw.ellipse((90, 215, 560, 275), fill="white")
    for tail_or_wing in (
        (520, 240, 600, 150, 560, 150, 470, 225),
        (360, 245, 250, 400, 200, 400, 270, 245),
        (350, 232, 290, 130, 255, 130, 270, 232),
    ):
        draw.polygon(tail_or_wing, fill="gainsboro")
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


AIRPLANE = _airplane()


@contextmanager
def visited(
    browser: "Browser", url: str, *, arrive: bool = True, models: Sequence[Any] = (), **options: Any
) -> Iterator["Page"]:
    """A tab in a fresh context, with `arrive` at `url` and ready. At its end no request has left that origin, nothing
    went against the page's policy, and the console has no error but that of requests that were refused.

    `models`: what the page is told of, as /v1/models lists them; all without.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(120_000)
    context.add_init_script(_WATCH)
    page = context.new_page()
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type in ("error", "warning") else None)
    try:
        if models:
            list_models(page, *models)
        if arrive:
            page.goto(url)
            expect(page.locator("#state")).to_have_text("ready")
        yield page
        violations = page.evaluate("() => window.seen.violations")
    finally:
        context.close()
    origin = urlsplit(url).netloc
    assert not [request for request in requests if urlsplit(request.removeprefix("blob:")).netloc != origin]
    assert violations == []
    unknown = [error for error in errors if not error.startswith("Failed to load resource")]
    assert not unknown, unknown


def pick(tab: "Page", **photos: bytes) -> None:
    """Choose photos by name, without its .png."""
    files: Any = [{"name": f"{name}.png", "mimeType": "image/png", "buffer": data} for name, data in photos.items()]
    tab.set_input_files("#files", files)


def transfer(tab: "Page", name: str, data: bytes) -> Any:
    """A photo as a drop or the clipboard brings it."""
    return tab.evaluate_handle(_TO_FILES, [(name, base64.b64encode(data).decode())])


def answering(status: int, code: str = "", **headers: str) -> Any:
    """Something between the page and the server that does not ask it: a proxy's refusal, or with `code` a server's."""
    body = json.dumps({"error": {"code": code, "message": "why"}, "request_id": "abc"}) if code else "<html>"
    return lambda route: route.fulfill(status=status, body=body, headers=headers)


def list_models(tab: "Page", *models: dict[str, Any]) -> None:
    """Let the page be told of these models alone."""
    tab.route("**/v1/models", lambda route: route.fulfill(json={"models": models, "aliases": []}))


def expect_text(tab: "Page", selector: str, pattern: str) -> None:
    """Wait until the text of the one element, or of the first, matches."""
    expect(tab.locator(selector).first).to_have_text(re.compile(pattern))


def expect_classes(tab: "Page", *labels: str) -> None:
    """Wait until these are the first classes of all answers."""
    expect(tab.locator(".classes li:first-child .clip")).to_have_text([*labels])


def figure(tab: "Page", name: str) -> Any:
    """A figure of the live strip."""
    return tab.locator("#live div", has_text=name).locator("dd")
