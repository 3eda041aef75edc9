"""Everything that can go wrong is said in words, and what passes is tried again."""

import io
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from milkweed.bench.ports import free_port
from milkweed.cli.bundle_args import demo_bundle
from milkweed.server.security.keys import key_block

from .tab import AIRPLANE, SHIP, answering, expect, expect_classes, expect_text, list_models, pick

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_bad_files_in_words(page: "Page", tmp_path: Path) -> None:
    markup = "<img src=x onerror=alert(1)>.txt"
    wide = io.BytesIO()
    Image.new("1", (6000, 6000)).save(wide, "PNG")
    files = {
        markup: (b"some text", "takes no files of this kind"),
        "cut.png": (AIRPLANE[:2000], "damaged or cut off"),
        "nothing.png": (b"", "is empty"),
        "wide.png": (wide.getvalue(), "more pixels than the server takes. PNG is 6000x6000 px: limit 20 megapixels"),
        "big.png": (SHIP + bytes(24_000_000), "too large. the body has 24.0 MB; the limit is 1.00 MB · 413 too_large"),
        "good.png": (SHIP, "ship"),
    }
    for name, (data, _) in files.items():
        (tmp_path / name).write_bytes(data)
    page.set_input_files("#files", [tmp_path / name for name in files])
    expect_text(page, "#progress", "^6 of 6, 5 failed$")
    for card, (_, said) in zip(page.locator(".card").all_inner_texts(), files.values(), strict=True):
        assert said in " ".join(card.split())
    assert page.locator(".card h3").first.inner_text() == markup
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    expect(page.locator(".picture canvas")).to_have_count(4)  # a browser shows half a picture too, but no text


def test_a_key_is_asked_for_once_it_is_needed(visit: Any, serving: Any, tmp_path: Path) -> None:
    """Beyond what the key may ask the photo waits as long as the server says."""
    keys = tmp_path / "keys.toml"
    keys.write_text(key_block("camera", "mw_right") + "images_per_second = 1\nimage_burst = 1\n")
    with serving({"demo": demo_bundle()}, api_keys=keys) as server:
        server.wait_ready()
        with visit(server.url, arrive=False) as tab:
            addresses: list[str] = []
            tab.on("request", lambda request: addresses.append(request.url))
            tab.goto(server.url)
            field = tab.get_by_label("API key")
            expect(field).to_be_focused()
            for wrong in ("", "two words", "müll"):
                field.fill(wrong)
                tab.keyboard.press("Enter")
                assert not field.evaluate("(field) => field.checkValidity()")
            field.fill("mw_wrong")
            tab.keyboard.press("Enter")
            expect_text(tab, "#key-error", "does not know that key")
            field.fill(" mw_right ")
            tab.get_by_role("button", name="Use it").click()
            expect(tab.locator("#state")).to_have_text("ready")
            expect(tab.locator("#key")).to_be_hidden()
            pick(tab, one=SHIP, two=SHIP)
            expect(tab.get_by_text("asked too often. Trying again in 1 s (1 of 4)")).to_be_visible()
            expect_text(tab, "#progress", "^2 of 2$")
            expect_text(tab, "#live", "MB|GB")
            tab.reload()
            expect(tab.locator("#state")).to_have_text("ready")
            expect(tab.locator("#key")).to_be_hidden()
            assert not [address for address in addresses if "mw_" in address]
            assert tab.evaluate("() => [localStorage.length, document.cookie]") == [0, ""]


def test_an_overloaded_server_is_asked_again_when_it_says(page: "Page") -> None:
    page.clock.install()
    for code in ("draining", "overloaded"):  # the route that was added last is asked first
        page.route("**/classify?*", answering(503, code, **{"retry-after": "30"}), times=1)
    pick(page, a=SHIP)
    for attempt, expected in enumerate(("has too much to do", "is shutting down"), 1):
        text = re.compile(rf"{expected}\. Trying again in 30 s \({attempt} of 4\)")
        expect(page.locator(".doing")).to_have_text(text)
        page.clock.fast_forward(15_000)  # the time that passes by itself comes on top
        expect(page.locator(".doing")).to_have_text(text)
        page.clock.fast_forward(15_100)
    expect_classes(page, "ship")


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (504, "deadline", "did not get to it in time. why · 504 deadline, request abc"),
        (500, "internal", "The server failed. why · 500 internal, request abc"),
        (404, "unknown_model", "is not served any more. why · 404 unknown_model"),
        (502, "", "The server refused. 502 other"),
    ],
)
def test_other_failures_in_words(page: "Page", status: int, code: str, said: str) -> None:
    page.route("**/classify?*", answering(status, code), times=1)
    pick(page, a=SHIP)
    expect(page.locator(".failure:visible")).to_have_count(1)
    again = " Try again" if status in (504, 500) else ""
    assert " ".join(page.locator(".answer").inner_text().split()).endswith(said + again)


def test_the_server_goes_and_comes_back(visit: Any, serving: Any) -> None:
    port = free_port()
    with serving({"demo": demo_bundle()}, port=port) as server:
        server.wait_ready()
        with visit(server.url, arrive=False) as tab:
            tab.clock.install()
            tab.goto(server.url)
            expect(tab.locator("#state")).to_have_text("ready")
            server.terminate(signal.SIGKILL)
            server.exit()
            pick(tab, a=SHIP, b=SHIP, c=SHIP)
            expect(tab.locator(".failure:visible")).to_have_text([re.compile("The server does not answer")] * 3)
            tab.clock.fast_forward(5100)
            expect(tab.locator("#state")).to_have_text("server does not answer")
            with serving({"demo": demo_bundle(), "twin": demo_bundle()}, port=port) as again:
                again.wait_ready()
                tab.get_by_role("button", name="Try again").first.click()
                expect_classes(tab, "ship")
                tab.get_by_role("button", name="Try failed again").click()
                expect(tab.locator("#answers-name")).to_be_focused()
                expect_text(tab, "#progress", "^3 of 3$")
                expect(tab.get_by_role("button", name="again")).to_have_count(0)
                tab.clock.fast_forward(5100)
                expect(tab.locator("#state")).to_have_text("ready")
                expect(tab.locator("#model option")).to_have_text(["demo", "twin"])


def test_a_server_that_is_silent(page: "Page") -> None:
    """Neither is waited for without end, nor is somebody hurried who looks for a key."""
    page.clock.install()
    page.route("**/metrics", lambda route: None)
    with page.expect_request("**/metrics"):
        page.clock.fast_forward(5100)
    page.clock.fast_forward(10_100)
    expect(page.locator("#state")).to_have_text("server does not answer")
    page.unroute("**/metrics")
    page.clock.fast_forward(5100)
    expect(page.locator("#state")).to_have_text("ready")
    page.route("**/classify?*", lambda route: None)
    with page.expect_request("**/classify?*"):
        pick(page, a=SHIP)
    page.clock.fast_forward(45_100)
    expect(page.locator(".failure:visible")).to_have_text(re.compile("and never answered"))
    page.unroute("**/classify?*")
    page.route("**/classify?*", answering(401), times=1)
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_label("API key")).to_be_focused()
    page.clock.fast_forward(60_000)
    assert page.locator(".failure:visible").count() == 0
    page.get_by_label("API key").fill("any")
    page.keyboard.press("Enter")
    expect_classes(page, "ship")


def test_the_focus_stays_where_it_is_tried_again(page: "Page") -> None:
    page.route("**/classify?*", answering(504, "deadline"), times=1)
    pick(page, a=SHIP, b=SHIP)
    expect(page.locator("#spoken")).to_have_text("2 photos are done, 1 failed.")
    page.get_by_role("button", name="Try again").press("Enter")
    expect(page.locator(".answer:focus .classes")).to_have_text(re.compile("^ship"))
    expect_text(page, "#progress", "^2 of 2$")


def test_a_model_that_goes_is_said_and_left(tab: "Page", models: Any) -> None:
    list_models(tab, models["monarch"], models["other"])
    tab.route("**/classify?model=dense", answering(404, "unknown_model"))
    pick(tab, a=SHIP)
    expect(tab.locator("#gone")).to_have_text("dense: not served any more.")
    expect_classes(tab, "ship")
    assert tab.locator("#beside option").all_inner_texts() == ["nothing", "monarch", "other"]
    assert tab.input_value("#model") == "monarch"


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (403, "{}", "server answers 403"),
        (200, "<html>", "server does not answer"),  # a proxy's
        (200, '{"models": [], "aliases": []}', "models are loading"),
    ],
)
def test_models_that_are_not_there_yet_are_waited_for(visit: Any, pair: Any, status: int, body: str, said: str) -> None:
    with visit(arrive=False) as tab:
        tab.route("**/v1/models", lambda route: route.fulfill(status=status, body=body))
        tab.goto(pair.url)
        expect(tab.locator("#state")).to_have_text(said)
        pick(tab, a=SHIP)
        tab.unroute("**/v1/models")
        expect_classes(tab, "ship", "ship")
        expect(tab.locator("#state")).to_have_text("ready")
