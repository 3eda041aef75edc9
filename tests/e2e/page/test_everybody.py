"""Keyboards, screen readers, phones, dark and light, and proxies."""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from milkweed.cli.bundle_args import named_bundles

from .tab import AIRPLANE, SHIP, expect, expect_classes, expect_text, pick

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHOTOS = {"ship": SHIP, "airplane": AIRPLANE, "a-name-" + "that-goes-on-" * 9: b"text"}


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
    chooser.value.set_files([{"name": "a.png", "mimeType": "image/png", "buffer": SHIP}])
    expect_text(tab, "#progress", "^1 of 1$")
    expect_text(tab, "#spoken", r"^a\.png: ship, \d+ %; beside it ship, \d+ %$")
    focus_on("#beside")
    tab.keyboard.type("nothing")
    expect_classes(tab, "ship")
    focus_on("#clear")
    tab.keyboard.press("Space")
    expect(tab.locator(".card")).to_have_count(0)
    expect(tab.locator("#choose")).to_be_focused()


@pytest.mark.slow_beyond(3)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("names", "options"),
    [
        (("monarch", "dense"), {}),
        (("fast", "dense"), {}),
        (("monarch", "dense"), {"has_touch": True, "is_mobile": True}),
    ],
    ids=["monarch", "fast", "phone"],
)
def test_it_fits_every_window_and_axe_finds_nothing(
    visit: Any, models: Any, tmp_path: Path, names: tuple[str, ...], options: dict[str, Any], scheme: str
) -> None:
    """The pictures it takes are for people to look at."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    folder = Path(os.environ.get("MILKWEED_PICTURES", tmp_path))
    # axe is a script of another origin to the page: here its policy has to let it in.
    options = {**options, "color_scheme": scheme, "bypass_csp": True, "reduced_motion": "reduce"}
    with visit(models=[models[name] for name in names], **options) as tab:
        is_phone = "is_mobile" in options
        assert tab.locator("#camera").is_visible() == is_phone
        for state in ("empty", "answers", "one model", "key"):
            if state == "answers":
                pick(tab, **PHOTOS)
            elif state == "one model":
                tab.select_option("#beside", "")
            elif state == "key":
                tab.locator("#key").evaluate("(form) => { form.hidden = false; }")
                tab.locator("details").evaluate_all("(tables) => tables.forEach((table) => { table.open = true; })")
            if state != "empty":
                expect_text(tab, "#progress", "^3 of 3, 1 failed$")
            for width in (360,) if is_phone else (360, 768, 1440):
                tab.set_viewport_size({"width": width, "height": 900})
                widths = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
                assert tab.evaluate(widths) == [width, width]
                name = "phone" if is_phone else names[0]
                tab.screenshot(path=folder / f"{name}-{state}-{width}-{scheme}.png", full_page=True)
            if not is_phone:  # so high that the side stays, and too low for it all
                tab.set_viewport_size({"width": 1280, "height": 850})
            violations = axe.run(tab).response["violations"]
            assert [(fault["id"], fault["impact"], fault["nodes"][0]["html"]) for fault in violations] == []


@pytest.mark.skipif("MILKWEED_PICTURES" not in os.environ, reason="takes the documentation's picture, where asked to")
def test_picture_of_the_demos(visit: Any, serving: Any) -> None:
    with serving(named_bundles([]), dtype="auto", micro_batch=1) as server:
        server.wait_ready()
        with visit(server.url, reduced_motion="reduce", viewport={"width": 1180, "height": 820}) as tab:
            for count in range(2, 22, 2):  # medians of fewer are chance
                pick(tab, ship=SHIP, airplane=AIRPLANE)
                expect_text(tab, "#progress", f"^{count} of {count}$")
            expect(tab.locator("#live-line")).to_be_visible(timeout=30_000)
            picture = Image.open(io.BytesIO(tab.screenshot())).quantize(256)
            picture.save(Path(os.environ["MILKWEED_PICTURES"]) / "page-light.png", optimize=True)


def test_the_demos_are_side_by_side(visit: Any, serving: Any) -> None:
    with serving(named_bundles([])) as server:
        server.wait_ready()
        with visit(server.url) as tab:
            expect(tab.locator("#model")).to_have_value("demo")
            expect(tab.locator("#beside")).to_have_value("demo-monarch")


def test_without_scripts_nothing_is_shown_that_needs_them(browser: "Browser", pair: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(pair.url)
    expect(tab.locator(".notice")).to_be_visible()
    expect(tab.get_by_role("button")).to_have_count(0)
    expect(tab.locator("#state")).to_be_hidden()
    context.close()


def test_the_key_to_the_bar_keeps_its_colours(visit: Any) -> None:
    with visit(forced_colors="active") as tab:
        pick(tab, a=SHIP)
        key = tab.locator(".stages [data-stage=forward]").first
        bar = tab.locator(".bar [data-stage=forward]").first
        colour = key.evaluate("(part) => getComputedStyle(part, '::before').backgroundColor")
        assert colour == bar.evaluate("(part) => getComputedStyle(part).backgroundColor")


def test_below_the_path_of_a_proxy(visit: Any, pair: Any) -> None:
    below = pair.url + "/some/where/"
    with visit(arrive=False) as tab:
        addresses: list[str] = []
        tab.on("request", lambda request: addresses.append(request.url))
        tab.route(f"{below}**", lambda route: route.continue_(url=route.request.url.replace("/some/where", "")))
        tab.goto(below)
        pick(tab, a=SHIP)
        expect_classes(tab, "ship", "ship")
        expect(tab.locator("#curl")).to_have_text(f"curl --data-binary @photo.jpg '{below}classify'")
        assert [address for address in addresses if not address.startswith(("blob:", below))] == []
