"""The page at / in a real browser, before a real server of three models."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from milkweed.cli.bundle_args import demo_bundle
from milkweed.models import CompressRequest, compress_model, load_bundle, save_bundle

from ...support.frontiers import record
from .browser import chromium, visited

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MAX_IMAGE_BYTES = 1_000_000
WINDOW = {"width": 1280, "height": 900}


# Not for the session: while it is open, this thread has an event loop, and tests of other files need one of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def pair(serving: Any, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The demo with Monarch layers, the demo, both without a graph or a search; a model of other classes; and the demo
    with the record of a search."""
    folder = tmp_path_factory.mktemp("pair")
    model, config = load_bundle(demo_bundle())
    save_bundle(folder / "dense", model, replace(config, metrics={}))
    compress_model(folder / "dense", folder / "monarch", CompressRequest(layers=("mlp", "qkv", "proj"), nblocks=8))
    save_bundle(folder / "fast", model, replace(config, metrics={**config.metrics, "search": record()}))
    bundles = {name: folder / name for name in ("monarch", "dense", "fast")} | {"other": tiny_bundle}
    with serving(bundles, max_image_bytes=MAX_IMAGE_BYTES, micro_batch=1) as server:
        server.wait_ready()
        yield server


@pytest.fixture
def tab(browser: "Browser", pair: Any) -> Iterator["Page"]:
    """The page of `pair`, ready, with two models side by side."""
    with visited(browser, pair.url, viewport=WINDOW) as page:
        yield page


@pytest.fixture
def page(tab: "Page") -> "Page":
    """The page of `pair`, ready, with one model."""
    tab.select_option("#beside", "")
    return tab


@pytest.fixture
def searched_tab(tab: "Page", pair: Any) -> "Page":
    """The page of a server of two models, of which a search made one from the other."""
    from .tab import list_models, models_of  # not above: this file is read without playwright, too

    models = models_of(pair)
    list_models(tab, models["fast"], models["dense"])
    tab.reload()
    tab.locator("#state", has_text="ready").wait_for()
    return tab
