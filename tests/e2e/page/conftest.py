"""The page at / in a headless Chromium, before a real server of four models."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from milkweed.cli.bundle_args import demo_bundle
from milkweed.models import load_bundle, save_bundle

from ...models.structured import project_bundle
from ...support.frontiers import record

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
MAX_IMAGE_BYTES = 1_000_000


# Not for the session: while it is open, this thread has an event loop, and tests of other files need one of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """The machine's Chromium; the tests that want it are skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'milkweed[test]'")
    path = os.environ.get("MILKWEED_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(CHROMIUMS)} is installed, and MILKWEED_CHROMIUM names none")
    api.expect.set_options(timeout=120_000)
    with api.sync_playwright() as playwright:
        # In a container its sandbox needs rights that tests have not; nothing but our own page is opened.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pair(serving: Any, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The demo with Monarch layers, the demo, both without a graph or a search; a model of other classes; and the demo
    with the record of a search."""
    folder = tmp_path_factory.mktemp("pair")
    model, config = load_bundle(demo_bundle())
    save_bundle(folder / "dense", model, replace(config, metrics={}))
    project_bundle(folder / "dense", folder / "monarch", ("mlp", "qkv", "proj"), nblocks=8)
    save_bundle(folder / "fast", model, replace(config, metrics={**config.metrics, "search": record()}))
    bundles = {name: folder / name for name in ("monarch", "dense", "fast")} | {"other": tiny_bundle}
    with serving(bundles, max_image_bytes=MAX_IMAGE_BYTES, micro_batch=1) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="session")
def models(pair: Any) -> dict[str, Any]:
    """What the server of `pair` says of its models, by name."""
    return {model["name"]: model for model in httpx.get(pair.url + "/v1/models").json()["models"]}


@pytest.fixture
def visit(browser: "Browser", pair: Any) -> Any:
    """`visited` of the page of `pair`, or of another server."""
    from .tab import visited  # not above: this file is read without playwright, too

    return lambda url=pair.url, **options: visited(browser, url, **options)


@pytest.fixture
def tab(visit: Any) -> Iterator["Page"]:
    """The page of `pair`, ready, with two models side by side."""
    with visit(viewport={"width": 1280, "height": 900}) as page:
        yield page


@pytest.fixture
def page(tab: "Page") -> "Page":
    """The page of `pair`, ready, with one model."""
    tab.select_option("#beside", "")
    return tab


@pytest.fixture
def searched_tab(visit: Any, models: Any) -> Iterator["Page"]:
    """The page of a server of two models, of which a search made one from the other."""
    with visit(models=(models["fast"], models["dense"]), viewport={"width": 1280, "height": 900}) as page:
        yield page
