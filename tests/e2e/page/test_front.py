"""The front of a model that a search made: a picture, a table, and what the model says of itself."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from ...support.frontiers import MODELS
from .browser import visited
from .drawings import DRAWINGS
from .tab import arrive, expect, photo, pick

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CLAIM = (
    "fast: 3.0 times as fast as its dense model in openvino float32 (1.7 times as in openvino bfloat16), "
    "92.6 % [90.3, 94.9] the same answers"
)
MEASURED = (
    "Measured when it was made, with 500 photographs, on AMD EPYC, 2 cores: 8.70 ms instead of 26.4 ms an image. "
    "All that was measured"
)


def test_a_model_says_what_its_search_measured(browser: "Browser", searched: Any) -> None:
    with visited(browser, searched.url) as tab:
        arrive(tab, searched.url)
        assert (tab.input_value("#model"), tab.input_value("#beside")) == ("fast", "dense")
        for beside in ("dense", ""):
            tab.select_option("#beside", beside)
            expect(tab.locator("#claims .lead")).to_have_text([CLAIM])
            expect(tab.locator("#claims .hint")).to_have_text([MEASURED])
            expect(tab.locator("#front .count")).to_have_text("fast, from 11 models and 500 photographs")
        tab.select_option("#model", "dense")
        expect(tab.locator("#front")).to_be_hidden()
        expect(tab.locator("#claims")).to_be_empty()
        tab.select_option("#model", "fast")
        expect(tab.locator("#front")).to_be_visible()
        expect(tab.locator("#front .dot")).to_have_count(len(MODELS))


def test_the_picture_is_to_scale(browser: "Browser", searched: Any) -> None:
    """The front for one image at a time is another one than that for eight, by which the record is sorted."""
    with visited(browser, searched.url, viewport={"width": 1280, "height": 900}) as tab:
        arrive(tab, searched.url)
        expect(tab.locator("#front .line")).to_have_count(1)
        scale = tab.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll("#front .grid text")].map((text) =>
                 [text.textContent, [Number(text.getAttribute("x")), Number(text.getAttribute("y"))]]))"""
        )
        per_ms, per_root = scale["10"][0] - scale["0"][0], scale["0.05"][1] - scale["0.005"][1]
        assert (per_ms, per_root) > (0, 0)
        zero_x = scale["5"][0] - per_ms / 2
        drawn = {}
        for dot in tab.locator("#front .dot").all():
            circle, bar = dot.locator("circle").last, dot.locator("line")
            places = [circle.get_attribute(name) for name in ("cx", "cy")]
            ends = [bar.get_attribute(name) for name in ("y1", "y2")]
            drawn[dot.locator("title").text_content()] = [float(each or "") for each in (*places, *ends)]
        chosen = next(each for title, each in drawn.items() if title and "8.70 ms" in title)
        assert chosen[0] - zero_x == pytest.approx(per_ms * 8.7 / 10, abs=0.5)
        roots = [kl**0.5 for kl in (0.0261, 0.0261 * 0.85, 0.0261 * 1.15)]
        one = per_root / (0.05**0.5 - 0.005**0.5)
        zero_y = scale["0.05"][1] - 4 - one * 0.05**0.5
        assert [each - zero_y for each in chosen[1:]] == pytest.approx([one * root for root in roots], abs=0.5)
        points = (tab.locator("#front .line").get_attribute("points") or "").split()
        assert len(points) == 7
        assert [float(each) for each in points[1].split(",")] == pytest.approx(chosen[:2])
        expect(tab.locator("#front .name")).to_have_text(["dense, 26.4 ms", "chosen", "8.70 ms, 3.0 ×"])


def test_the_table_has_every_model_with_its_intervals(browser: "Browser", searched: Any) -> None:
    with visited(browser, searched.url) as tab:
        arrive(tab, searched.url)
        tab.get_by_text("As a table").press("Enter")
        rows = [" ".join(row.split()) for row in tab.locator("#front tbody tr").all_inner_texts()]
        assert len(rows) == 1 + len(MODELS)
        assert rows[0] == "dense openvino float32 26.4 ms 1.0 × 100 0"
        (chosen,) = (row for row in rows if "chosen" in row)
        assert chosen == (
            "class token last, merge 22 % every 2 blocks from 3, class attention 0.1, int8 chosen openvino bfloat16 "
            "8.70 ms 3.0 × 92.6 90.3 to 94.9 0.026 0.022 to 0.03 −0.2 −2.5 to +2.1 6.00 MB"
        )


def test_the_listing_is_short(searched: Any) -> None:
    said = httpx.get(searched.url + "/v1/models").json()["models"][0]
    assert "search" not in said["metrics"]
    assert len(str(said["search"])) < 4000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_window_and_axe_finds_nothing(
    browser: "Browser", searched: Any, tmp_path: Path, scheme: Any
) -> None:
    """The pictures it takes are for people to look at."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    folder = Path(os.environ.get("MILKWEED_PICTURES", tmp_path))
    options = {"color_scheme": scheme, "bypass_csp": True, "reduced_motion": "reduce"}
    with visited(browser, searched.url, viewport={"width": 1280, "height": 900}, **options) as tab:
        arrive(tab, searched.url)
        for state in ("empty", "table", "answers", "one model"):
            if state == "table":
                tab.get_by_text("As a table").click()
            elif state == "answers":
                photos = [photo(f"{drawing.__name__}.png", drawing()) for drawing in DRAWINGS]
                pick(tab, *photos)
                expect(tab.locator("#progress")).to_have_text("3 of 3")
            elif state == "one model":
                tab.select_option("#beside", "")
                expect(tab.locator("#progress")).to_have_text("3 of 3")
            for width in (360, 768, 1280):
                tab.set_viewport_size({"width": width, "height": 900})
                wide = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
                assert tab.evaluate(wide) == [width, width]
                if state in ("empty", "table", "answers"):
                    tab.screenshot(path=folder / f"front-{state}-{width}-{scheme}.png", full_page=True)
            found = axe.run(tab).response["violations"]
            assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found] == []
