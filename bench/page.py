"""What the page at / costs a browser: first paint and bytes of cold loads: `python -m milkweed.bench.page URL`.

Needs Playwright (`pip install 'milkweed[test]'`) and a Chromium.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .machine import machine

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SERVICE = ("/metrics", "/v1/models", "/livez")  # what it asks the service for, beside its own files
_PAINTS = """() => new Promise((resolve) => new PerformanceObserver((list, observer) => {
  const paints = Object.fromEntries(list.getEntries().map(({ name, startTime }) => [name, startTime]));
  if ("first-contentful-paint" in paints) { observer.disconnect(); resolve(paints); }
}).observe({ type: "paint", buffered: true }))"""
_USABLE = '() => performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd'


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of a running server")
    parser.add_argument("--loads", type=int, default=5, help="each in a browser profile of its own")
    parser.add_argument("--browser", default=shutil.which("chromium"), help="a Chromium's executable")
    options = parser.parse_args(arguments)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.browser, args=["--no-sandbox"])
        loads = [load(browser, options.url) for _ in range(options.loads)]
        version = browser.version
        browser.close()
    names = ("first_contentful_paint_ms", "usable_ms", "page_bytes", "page_requests")
    medians = {name: round(median(each[name] for each in loads), 1) for name in names}
    print(json.dumps({"machine": machine(), "chromium": version, "median": medians, "loads": loads}, indent=1))


def load(browser: "Browser", url: str) -> dict[str, Any]:
    """One load with an empty cache: paints in ms after the navigation began, bytes as transferred, headers included."""
    context = browser.new_context()
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    paths: dict[str, str] = {}
    sizes: dict[str, int] = {}
    session.on(
        "Network.requestWillBeSent", lambda e: paths.update({e["requestId"]: urlsplit(e["request"]["url"]).path})
    )
    session.on("Network.loadingFinished", lambda e: sizes.update({e["requestId"]: round(e["encodedDataLength"])}))
    page.goto(url)
    paints = page.evaluate(_PAINTS)
    page.wait_for_selector("#state[data-state=ready]")
    page.wait_for_load_state("networkidle")
    usable = page.evaluate(_USABLE)
    context.close()
    own = [sizes[id] for id, path in paths.items() if path not in SERVICE and id in sizes]
    return {
        "first_contentful_paint_ms": round(paints["first-contentful-paint"], 1),
        "usable_ms": round(usable, 1),
        "page_bytes": sum(own),
        "page_requests": len(own),
        "service_bytes": {path: sizes[id] for id, path in paths.items() if path in SERVICE and id in sizes},
    }


if __name__ == "__main__":
    main()
