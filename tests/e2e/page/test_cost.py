"""What `milkweed.bench.page` says of the page: the bytes that a browser takes, and when it paints."""

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from milkweed.bench.page import SERVICE, load

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'milkweed[test]'")

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_a_cold_load_is_counted_whole(browser: "Browser", pair: Any) -> None:
    cost = load(browser, pair.url)
    files = {"/", *(f"/page/{name}" for name in ("style.css", "main.js", "icon.svg"))}
    with httpx.Client(base_url=pair.url, headers={"accept-encoding": "gzip"}) as client:
        packed = [int(client.get(path).headers["content-length"]) for path in sorted(files)]
    assert sum(packed) < cost["page_bytes"] < 60_000
    assert cost["page_requests"] > len(files)
    assert set(cost["service_bytes"]) <= set(SERVICE)
    assert cost["first_contentful_paint_ms"] > 0
    assert cost["usable_ms"] > 0
