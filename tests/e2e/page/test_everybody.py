"""Keyboards, screen readers, phones, dark and light, and proxies."""

import io
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from milkweed.cli.bundle_args import demo_bundle
from milkweed.models import load_bundle, save_bundle

from .browser import visited
from .drawings import DRAWINGS, ship
from .tab import check_width, expect, list_models, models_of, pick, top

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHOTOS = {drawing.__name__: drawing() for drawing in DRAWINGS}
TEXT = {"a-name-" + "that-goes-on-" * 9: b"text"}


def test_page_works_with_the_keyboard_alone(tab: "Page") -> None:
    def focus_on(selector: str) -> None:
        for _ in range(30):
            if tab.locator(f"{selector}:focus").count():
                return
            tab.keyboard.press("Tab")
        raise AssertionError(f"{selector} is not reached by Tab")

    tab.on("filechooser", lambda chooser: None)  # from now on no dialog is opened, however soon the key comes
    focus_on("#choose")
    assert tab.locator("#choose").evaluate("(button) => getComputedStyle(button).outlineStyle") == "solid"
    with tab.expect_file_chooser() as chooser:
        tab.keyboard.press("Enter")
    chooser.value.set_files([{"name": "a.png", "mimeType": "image/png", "buffer": ship()}])
    expect(tab.locator("#progress")).to_have_text("1 of 1")
    expect(tab.locator("#spoken")).to_have_text(re.compile(r"^a\.png: ship, \d+ %; beside it ship, \d+ %$"))
    focus_on("#beside")
    tab.keyboard.type("nothing")
    expect(tab.locator(".answer")).to_have_count(1)
    expect(top(tab)).to_have_text(re.compile("^ship"))
    focus_on("#clear")
    tab.keyboard.press("Space")
    expect(tab.locator(".card")).to_have_count(0)
    expect(tab.locator("#choose")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("names", [("monarch", "dense"), ("fast", "dense")], ids=["monarch", "fast"])
def test_it_fits_every_window_and_axe_finds_nothing(
    browser: "Browser", pair: Any, tmp_path: Path, names: tuple[str, ...], scheme: Any
) -> None:
    """The pictures it takes are for people to look at."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    folder = Path(os.environ.get("MILKWEED_PICTURES", tmp_path))
    # axe is a script of another origin to the page: here its policy has to let it in.
    options = {"color_scheme": scheme, "bypass_csp": True, "reduced_motion": "reduce"}
    with visited(browser, pair.url, arrive=False, **options) as tab:
        list_models(tab, *(models_of(pair)[name] for name in names))
        tab.goto(pair.url)
        expect(tab.locator("#state")).to_have_text("ready")
        assert not tab.locator("#camera").is_visible()
        for state in ("empty", "answers", "one model", "key"):
            if state == "answers":
                pick(tab, **PHOTOS, **TEXT)
            elif state == "one model":
                tab.select_option("#beside", "")
            elif state == "key":
                tab.locator("#key").evaluate("(form) => { form.hidden = false; }")
                tab.locator("details").evaluate_all("(tables) => tables.forEach((table) => { table.open = true; })")
            if state != "empty":
                expect(tab.locator("#progress")).to_have_text("3 of 3, 1 failed")
            for width in (360, 768, 1440):
                check_width(tab, width)
                tab.screenshot(path=folder / f"{names[0]}-{state}-{width}-{scheme}.png", full_page=True)
            tab.set_viewport_size({"width": 1280, "height": 850})  # so high that the side stays, and too low for it all
            violations = axe.run(tab).response["violations"]
            assert [(fault["id"], fault["impact"], fault["nodes"][0]["html"]) for fault in violations] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_a_camera(browser: "Browser", pair: Any, tmp_path: Path, scheme: Any) -> None:
    folder = Path(os.environ.get("MILKWEED_PICTURES", tmp_path))
    with visited(browser, pair.url, has_touch=True, is_mobile=True, color_scheme=scheme) as tab:
        for state in ("empty", "answers"):
            if state == "answers":
                pick(tab, **PHOTOS, **TEXT)
                expect(tab.locator("#progress")).to_have_text("3 of 3, 1 failed")
            assert tab.locator("#camera").is_visible()
            check_width(tab, 360)
            tab.screenshot(path=folder / f"phone-{state}-{scheme}.png", full_page=True)


@pytest.mark.skipif("MILKWEED_PICTURES" not in os.environ, reason="takes the documentation's pictures, where asked to")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_of_the_demo_and_its_dense_twin(browser: "Browser", serving: Any, tmp_path: Path, scheme: Any) -> None:
    model, config = load_bundle(demo_bundle())
    save_bundle(tmp_path / "dense", model, replace(config, metrics={}))
    with serving({"demo": demo_bundle(), "dense": tmp_path / "dense"}, dtype="auto", micro_batch=1) as server:
        server.wait_ready()
        with visited(browser, server.url, color_scheme=scheme, reduced_motion="reduce") as tab:
            for count in range(2, 22, 2):  # medians of fewer are chance
                pick(tab, **PHOTOS)
                expect(tab.locator("#progress")).to_have_text(f"{count} of {count}")
            expect(tab.locator("#live-line")).to_be_visible(timeout=30_000)
            tab.set_viewport_size({"width": 1180, "height": 820})
            picture = Image.open(io.BytesIO(tab.screenshot())).quantize(256)
            picture.save(Path(os.environ["MILKWEED_PICTURES"]) / f"page-{scheme}.png", optimize=True)


def test_without_scripts_nothing_is_shown_that_needs_them(browser: "Browser", pair: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(pair.url)
    expect(tab.locator(".notice")).to_be_visible()
    expect(tab.get_by_role("button")).to_have_count(0)
    expect(tab.locator("#state")).to_be_hidden()
    context.close()


def test_the_key_to_the_bar_keeps_its_colours(browser: "Browser", pair: Any) -> None:
    with visited(browser, pair.url, forced_colors="active") as tab:
        pick(tab, a=ship())
        key = tab.locator(".stages [data-stage=forward]").first
        bar = tab.locator(".bar [data-stage=forward]").first
        colour = key.evaluate("(part) => getComputedStyle(part, '::before').backgroundColor")
        assert colour == bar.evaluate("(part) => getComputedStyle(part).backgroundColor")


def test_below_the_path_of_a_proxy(browser: "Browser", pair: Any) -> None:
    below = pair.url + "/some/where/"
    with visited(browser, pair.url, arrive=False) as tab:
        outside: list[str] = []
        tab.on("request", lambda request: outside.append(request.url) if not request.url.startswith(below) else None)
        tab.route(f"{below}**", lambda route: route.continue_(url=route.request.url.replace("/some/where", "")))
        tab.goto(below)
        pick(tab, a=ship())
        expect(top(tab)).to_have_text(re.compile("^ship"))
        expect(tab.locator("#curl")).to_have_text(re.compile(re.escape(below) + "classify'"))
        assert [address for address in outside if not address.startswith("blob:")] == []
