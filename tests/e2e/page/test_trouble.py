"""Everything that can go wrong is said in words, and what passes is tried again."""

import io
import json
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from PIL import Image

from milkweed.cli.bundle_args import demo_bundle
from milkweed.server.security.keys import key_block

from ...support.ports import free_port
from .browser import visited
from .drawings import ship
from .tab import answering, arrive, expect, photo, pick, top, words

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def test_bad_files_in_words(page: "Page", tmp_path: Path) -> None:
    markup = "<img src=x onerror=alert(1)>.txt"
    wide = io.BytesIO()
    Image.new("1", (6000, 6000)).save(wide, "PNG")
    files = {
        markup: b"some text",
        "cut.png": ship()[:3000],
        "nothing.png": b"",
        "wide.png": wide.getvalue(),
        "big.png": ship() + bytes(24_000_000),
        "good.png": ship(),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    page.set_input_files("#files", [tmp_path / name for name in files])
    expect(page.locator("#progress")).to_have_text("6 of 6, 5 failed")
    for place, expected in enumerate(
        (
            "takes no files of this kind",
            "damaged or cut off",
            "is empty",
            "more pixels than the server takes",
            "too large: it has 24.0 MB, the limit is 1.00 MB",
            "ship",
        )
    ):
        assert expected in words(page, place)
    assert "6000x6000 px: limit 20 megapixels" in words(page, 3)
    assert page.locator(".card h3").first.inner_text() == markup
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    expect(page.locator(".picture canvas")).to_have_count(4)  # a browser shows half a picture too, but no text


def test_a_key_is_asked_for_once_it_is_needed(browser: "Browser", serving: Any, tmp_path: Path) -> None:
    """Beyond what the key may ask the photo waits as long as the server says."""
    keys = tmp_path / "keys.toml"
    keys.write_text(key_block("camera", "mw_right") + "images_per_second = 1\nimage_burst = 1\n")
    with serving({"demo": demo_bundle()}, api_keys=keys) as server:
        server.wait_ready()
        with visited(browser, server.url) as tab:
            addresses: list[str] = []
            tab.on("request", lambda request: addresses.append(request.url))
            tab.goto(server.url)
            expect(tab.get_by_label("API key")).to_be_focused()
            for wrong, said in (("two words", "no spaces"), ("mw_wrong", "does not know that key")):
                tab.get_by_label("API key").fill(wrong)
                tab.keyboard.press("Enter")
                expect(tab.locator("#key-error")).to_have_text(re.compile(said))
            tab.get_by_label("API key").fill("mw_right")
            tab.get_by_role("button", name="Use it").click()
            expect(tab.locator("#state")).to_have_text("ready")
            expect(tab.locator("#key")).to_be_hidden()
            pick(tab, photo("one.png", ship()), photo("two.png", ship()))
            expect(tab.get_by_text("asked too often. Trying again in 1 s (1 of 4)")).to_be_visible()
            expect(tab.locator("#progress")).to_have_text("2 of 2")
            expect(tab.locator("#live-memory")).to_have_text(re.compile("MB|GB"))
            tab.reload()
            expect(tab.locator("#state")).to_have_text("ready")
            expect(tab.locator("#key")).to_be_hidden()
            assert not [each for each in addresses if "mw_" in each]
            assert tab.evaluate("() => [localStorage.length, document.cookie]") == [0, ""]


def test_an_overloaded_server_is_asked_again_when_it_says(page: "Page") -> None:
    said: list[str] = []

    def refuse(route: Any) -> None:
        if len(said) == 2:
            route.continue_()
            return
        code = ("overloaded", "draining")[len(said)]
        said.append(code)
        body = f'{{"error": {{"code": "{code}", "message": "full"}}, "request_id": "x"}}'
        route.fulfill(status=503, headers={"retry-after": "30"}, content_type="application/json", body=body)

    page.clock.install()
    page.route("**/classify?*", refuse)
    pick(page, photo("a.png", ship()))
    for attempt, expected in enumerate(("has too much to do", "is shutting down"), 1):
        text = re.compile(rf"{expected}\. Trying again in 30 s \({attempt} of 4\)")
        expect(page.locator(".doing")).to_have_text(text)
        page.clock.fast_forward(15_000)  # the time that passes by itself comes on top
        expect(page.locator(".doing")).to_have_text(text)
        page.clock.fast_forward(15_100)
    expect(top(page)).to_have_text(re.compile("^ship"))


def test_other_failures_in_words(page: "Page") -> None:
    failures = [
        (504, "deadline", "did not get to it in time"),
        (500, "internal", "The server failed."),
        (404, "unknown_model", "is not served any more"),
        (502, None, "The server refused."),
    ]
    for status, code, said in failures:
        body = f'{{"error": {{"code": "{code}", "message": "why"}}, "request_id": "abc"}}' if code else "<html>"
        page.route("**/classify?*", answering(status, body), times=1)
        pick(page, photo("a.png", ship()))
        expect(page.locator(".failure:visible").first).to_have_text(re.compile(said))
        assert ("abc" in words(page)) == (status in (500, 504))


def test_the_server_goes_and_comes_back(browser: "Browser", serving: Any) -> None:
    port = free_port()
    with serving({"demo": demo_bundle()}, port=port) as server:
        server.wait_ready()
        with visited(browser, server.url) as tab:
            tab.clock.install()
            arrive(tab, server.url)
            server.terminate(signal.SIGKILL)
            server.exit()
            pick(tab, *(photo(name, ship()) for name in ("a.png", "b.png", "c.png")))
            expect(tab.locator(".failure:visible")).to_have_text([re.compile("The server does not answer")] * 3)
            tab.clock.fast_forward(5100)
            expect(tab.locator("#state")).to_have_text("server does not answer")
            with serving({"demo": demo_bundle()}, port=port) as again:
                again.wait_ready()
                tab.get_by_role("button", name="Try again").first.click()
                expect(top(tab)).to_have_text(re.compile("^ship"))
                tab.get_by_role("button", name="Try failed again").click()
                expect(tab.locator("#answers-name")).to_be_focused()
                expect(tab.locator("#progress")).to_have_text("3 of 3")
                expect(tab.get_by_role("button", name="again")).to_have_count(0)
                tab.clock.fast_forward(5100)
                expect(tab.locator("#state")).to_have_text("ready")


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
        pick(page, photo("a.png", ship()))
    page.clock.fast_forward(45_100)
    expect(page.locator(".failure:visible")).to_have_text(re.compile("and never answered"))
    page.unroute("**/classify?*")
    page.route("**/classify?*", answering(401, "{}"), times=1)
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_label("API key")).to_be_focused()
    page.clock.fast_forward(60_000)
    assert page.locator(".failure:visible").count() == 0
    page.get_by_label("API key").fill("any")
    page.keyboard.press("Enter")
    expect(top(page)).to_have_text(re.compile("^ship"))


def test_the_focus_stays_where_it_is_tried_again(page: "Page") -> None:
    page.route("**/classify?*", answering(504, '{"error": {"code": "deadline"}}'), times=1)
    pick(page, photo("a.png", ship()), photo("b.png", ship()))
    expect(page.locator("#spoken")).to_have_text("2 photos are done, 1 failed.")
    page.get_by_role("button", name="Try again").press("Enter")
    expect(page.locator(".answer:focus .classes")).to_have_text(re.compile("^ship"))
    expect(page.locator("#progress")).to_have_text("2 of 2")


def test_a_model_that_goes_is_said_and_left(browser: "Browser", pair: Any) -> None:
    with visited(browser, pair.url) as tab:
        arrive(tab, pair.url)
        said = httpx.get(pair.url + "/v1/models").json()
        said["models"] = [model for model in said["models"] if model["name"] != "dense"]
        tab.route("**/v1/models", answering(200, json.dumps(said)))
        tab.route("**/classify?model=dense", answering(404, '{"error": {"code": "unknown_model"}}'))
        pick(tab, photo("a.png", ship()))
        expect(tab.locator("#gone")).to_have_text("dense: not served any more.")
        expect(tab.locator(".answer")).to_have_count(1)
        expect(top(tab)).to_have_text(re.compile("^ship"))
        assert tab.locator("#beside option").all_inner_texts() == ["nothing", "monarch", "other"]
        assert tab.input_value("#model") == "monarch"


def test_a_server_that_refuses_to_say_its_models(browser: "Browser", pair: Any) -> None:
    with visited(browser, pair.url) as tab:
        tab.route("**/v1/models", answering(403, "{}"))
        tab.goto(pair.url)
        expect(tab.locator("#state")).to_have_text("server answers 403")
        tab.unroute("**/v1/models")
        tab.route("**/v1/models", answering(200, "<html>"), times=1)  # a proxy's
        expect(tab.locator("#state")).to_have_text("ready")


def test_models_that_load_are_waited_for(browser: "Browser", pair: Any) -> None:
    with visited(browser, pair.url) as tab:
        tab.route("**/v1/models", lambda route: route.fulfill(body='{"models": [], "aliases": []}'), times=1)
        tab.goto(pair.url)
        expect(tab.locator("#state")).to_have_text("models are loading")
        pick(tab, photo("a.png", ship()))
        expect(top(tab)).to_have_text(re.compile("^ship"))
        expect(tab.locator("#state")).to_have_text("ready")
