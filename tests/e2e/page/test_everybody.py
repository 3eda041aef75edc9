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
from .tab import arrive, expect, photo, pick, top

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def test_page_works_with_the_keyboard_alone(browser: "Browser", pair: Any) -> None:
    with visited(browser, pair.url) as tab:
        tab.on("filechooser", lambda chooser: None)  # from now on no dialog is opened, however soon the key comes
        arrive(tab, pair.url)

        def focus_on(selector: str) -> None:
            for _ in range(30):
                if tab.locator(f"{selector}:focus").count():
                    return
                tab.keyboard.press("Tab")
            raise AssertionError(f"{selector} is not reached by Tab")

        focus_on("#choose")
        assert tab.locator("#choose").evaluate("(button) => getComputedStyle(button).outlineStyle") == "solid"
        with tab.expect_file_chooser() as chooser:
            tab.keyboard.press("Enter")
        chooser.value.set_files([photo("a.png", ship())])
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
def test_axe_finds_nothing_serious(browser: "Browser", pair: Any, scheme: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    # axe is a script of another origin to the page: here its policy has to let it in.
    with visited(browser, pair.url, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce") as tab:
        tab.set_viewport_size({"width": 1280, "height": 850})  # so high that the side stays, and too low for all of it
        arrive(tab, pair.url)
        for state in ("empty", "answers", "one model", "key"):
            if state == "answers":
                pick(tab, photo("a.png", ship()), photo("b.txt", b"text"))
                expect(tab.locator("#progress")).to_have_text("2 of 2, 1 failed")
            elif state == "one model":
                tab.select_option("#beside", "")
                expect(tab.locator("#progress")).to_have_text("2 of 2, 1 failed")
            elif state == "key":
                tab.locator("#key").evaluate("(form) => { form.hidden = false; }")
            found = axe.run(tab).response["violations"]
            assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("touch", [False, True])
def test_nothing_is_wider_than_the_window(
    browser: "Browser", pair: Any, tmp_path: Path, touch: bool, scheme: Any
) -> None:
    """The pictures it takes are for people to look at."""
    folder = Path(os.environ.get("MILKWEED_PICTURES", tmp_path))
    options = {"has_touch": touch, "is_mobile": touch, "color_scheme": scheme, "reduced_motion": "reduce"}
    with visited(browser, pair.url, viewport={"width": 360, "height": 740}, **options) as tab:
        arrive(tab, pair.url)
        assert tab.locator("#camera").is_visible() == touch
        tab.screenshot(path=folder / f"empty-{scheme}-{touch}.png")
        photos = [(f"{drawing.__name__}.png", drawing()) for drawing in DRAWINGS]
        pick(tab, *(photo(*each) for each in (*photos, ("a-name-" + "that-goes-on-" * 9 + ".txt", b"text"))))
        expect(tab.locator("#progress")).to_have_text("4 of 4, 1 failed")
        assert tab.locator("#camera").is_visible() == touch
        for width in (360,) if touch else (360, 768, 1440):
            tab.set_viewport_size({"width": width, "height": 900})
            wide = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            assert tab.evaluate(wide) == [width, width]
            tab.screenshot(path=folder / f"{width}-{scheme}-{touch}.png", full_page=True)


@pytest.mark.skipif("MILKWEED_PICTURES" not in os.environ, reason="takes the documentation's pictures, where asked to")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_of_the_demo_and_its_dense_twin(browser: "Browser", serving: Any, tmp_path: Path, scheme: Any) -> None:
    model, config = load_bundle(demo_bundle())
    save_bundle(tmp_path / "dense", model, replace(config, metrics={}))
    with serving({"demo": demo_bundle(), "dense": tmp_path / "dense"}, dtype="auto", micro_batch=1) as server:
        server.wait_ready()
        with visited(browser, server.url, color_scheme=scheme, reduced_motion="reduce") as tab:
            arrive(tab, server.url)
            picture(tab, Path(os.environ["MILKWEED_PICTURES"]) / f"page-{scheme}.png")


def picture(tab: "Page", path: Path) -> None:
    """The one for the documentation, once the strip has something to say."""
    photos = [photo(f"{drawing.__name__}.png", drawing()) for drawing in DRAWINGS] * 7  # medians of fewer are chance
    pick(tab, *photos)
    expect(tab.locator("#progress")).to_have_text(f"{len(photos)} of {len(photos)}")
    expect(tab.locator("#live-line")).to_be_visible(timeout=30_000)
    tab.set_viewport_size({"width": 1180, "height": 820})
    Image.open(io.BytesIO(tab.screenshot())).quantize(256).save(path, optimize=True)


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
        arrive(tab, pair.url)
        pick(tab, photo("a.png", ship()))
        colour = "(part) => getComputedStyle(part, '::before').backgroundColor"
        key = tab.locator(".stages p [data-stage=forward]").first
        bar = tab.locator(".bar [data-stage=forward]").first
        assert key.evaluate(colour) == bar.evaluate(colour.replace(", '::before'", ""))


def test_below_the_path_of_a_proxy(browser: "Browser", pair: Any) -> None:
    below = pair.url + "/some/where/"
    with visited(browser, pair.url) as tab:
        outside: list[str] = []
        tab.on("request", lambda request: outside.append(request.url) if not request.url.startswith(below) else None)
        tab.route(f"{below}**", lambda route: route.continue_(url=route.request.url.replace("/some/where", "")))
        arrive(tab, below)
        pick(tab, photo("a.png", ship()))
        expect(top(tab)).to_have_text(re.compile("^ship"))
        expect(tab.locator("#curl")).to_have_text(re.compile(re.escape(below) + "classify'"))
        assert [each for each in outside if not each.startswith("blob:")] == []
