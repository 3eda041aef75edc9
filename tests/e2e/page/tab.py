"""What the tests do with a tab that shows the page."""

import base64
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'milkweed[test]'")
from playwright.sync_api import expect as expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

_TO_FILES = """(files) => {
  const transfer = new DataTransfer();
  for (const [name, data] of files) {
    transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name, { type: "image/png" }));
  }
  return transfer;
}"""


def pick(tab: "Page", **photos: bytes) -> None:
    """Choose photos by name, without its .png."""
    files: Any = [{"name": f"{name}.png", "mimeType": "image/png", "buffer": data} for name, data in photos.items()]
    tab.set_input_files("#files", files)


def answering(status: int, code: str = "", **headers: str) -> Any:
    """Something between the page and the server that does not ask it: a proxy's refusal, or with `code` a server's."""
    body = json.dumps({"error": {"code": code, "message": "why"}, "request_id": "abc"}) if code else "<html>"
    return lambda route: route.fulfill(status=status, body=body, headers=headers)


def models_of(server: Any) -> dict[str, Any]:
    """What the server says of its models, by name."""
    return {model["name"]: model for model in httpx.get(server.url + "/v1/models").json()["models"]}


def list_models(tab: "Page", *models: dict[str, Any]) -> None:
    """Let the page be told of these models alone."""
    tab.route("**/v1/models", lambda route: route.fulfill(json={"models": models, "aliases": []}))


def top(tab: "Page", place: int = 0) -> Any:
    """The first class of an answer."""
    return tab.locator(".answer").nth(place).locator(".classes li").first


def transfer(tab: "Page", *files: tuple[str, bytes]) -> Any:
    return tab.evaluate_handle(_TO_FILES, [(name, base64.b64encode(data).decode()) for name, data in files])


def figure(tab: "Page", name: str) -> Any:
    """A figure of the live strip."""
    return tab.locator("#live div", has_text=name).locator("dd")


def check_width(tab: "Page", width: int) -> None:
    """Make the window so wide, and see that nothing is wider."""
    tab.set_viewport_size({"width": width, "height": 900})
    widths = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    assert tab.evaluate(widths) == [width, width]
