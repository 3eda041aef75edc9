"""What the tests do with a tab that shows the page."""

import base64
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'milkweed[test]'")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

_TO_FILES = """(files) => {
  const transfer = new DataTransfer();
  for (const [name, data] of files) {
    transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name, { type: "image/png" }));
  }
  return transfer;
}"""


def arrive(tab: "Page", url: str) -> None:
    tab.goto(url)
    expect(tab.locator("#state")).to_have_text("ready")


def photo(name: str, data: bytes) -> dict[str, Any]:
    return {"name": name, "mimeType": "image/png", "buffer": data}


def pick(tab: "Page", *photos: dict[str, Any]) -> None:
    tab.set_input_files("#files", list(photos))


def answering(status: int, body: str) -> Any:
    """Something between the page and the server that does not ask it."""
    return lambda route: route.fulfill(status=status, body=body)


def words(tab: "Page", place: int = 0) -> str:
    """The text of one card."""
    return tab.locator(".card").nth(place).inner_text()


def top(tab: "Page", place: int = 0) -> Any:
    """The first class of an answer."""
    return tab.locator(".answer").nth(place).locator(".classes li").first


def transfer(tab: "Page", *files: tuple[str, bytes]) -> Any:
    return tab.evaluate_handle(_TO_FILES, [(name, base64.b64encode(data).decode()) for name, data in files])
