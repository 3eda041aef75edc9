"""The front of a model that a search made: a picture, a table, and what the model says of itself."""

from typing import TYPE_CHECKING, Any

import pytest

from ...support.frontiers import MODELS
from .tab import expect, models_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

CLAIM = (
    "fast: speedup 3.0 over its dense model in openvino float32 (1.7 over openvino bfloat16), "
    "top-1 agreement 92.6 % [90.3, 94.9]"
)
MEASURED = (
    "Measured when it was made, with 500 photographs, on AMD EPYC, 2 cores: 8.70 ms instead of 26.4 ms an image. "
    "All that was measured"
)


def test_a_model_says_what_its_search_measured(searched_tab: "Page") -> None:
    tab = searched_tab
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


def test_the_picture_is_to_scale(searched_tab: "Page") -> None:
    """The front for one image at a time is another one than that for eight, by which the record is sorted."""
    front = searched_tab.locator("#front")
    expect(front.locator(".line")).to_have_count(1)
    place = "(text) => [text.textContent, [Number(text.getAttribute('x')), Number(text.getAttribute('y'))]]"
    scale = front.evaluate(f"(front) => Object.fromEntries([...front.querySelectorAll('svg > text')].map({place}))")
    per_ms = (scale["25"][0] - scale["5"][0]) / 20
    per_root = (scale["0.08"][1] - scale["0.009"][1]) / (0.08**0.5 - 0.009**0.5)
    assert (per_ms, per_root) > (0, 0)
    zero_x, zero_y = scale["10"][0] - 10 * per_ms, scale["0.08"][1] - 4 - per_root * 0.08**0.5
    assert scale["0.03"][1] - 4 == pytest.approx(zero_y + per_root * 0.03**0.5)
    chosen = front.locator(".dot.chosen")
    assert "8.70 ms" in (chosen.locator("title").text_content() or "")
    circle, bar = chosen.locator("circle").last, chosen.locator("line")
    cx, cy = (float(circle.get_attribute(name) or "") for name in ("cx", "cy"))
    ends = [float(bar.get_attribute(name) or "") for name in ("y1", "y2")]
    assert cx - zero_x == pytest.approx(per_ms * 8.7, abs=0.5)
    roots = [kl**0.5 for kl in (0.0261, 0.0261 * 0.85, 0.0261 * 1.15)]
    assert [y - zero_y for y in (cy, *ends)] == pytest.approx([per_root * root for root in roots], abs=0.5)
    points = (front.locator(".line").get_attribute("points") or "").split()
    assert len(points) == 7
    assert [float(part) for part in points[1].split(",")] == pytest.approx([cx, cy])
    expect(front.locator(".name")).to_have_text(["dense, 26.4 ms", "chosen", "8.70 ms, 3.0 ×"])


def test_the_table_has_every_model_with_its_intervals(searched_tab: "Page") -> None:
    searched_tab.get_by_text("As a table").press("Enter")
    rows = [" ".join(row.split()) for row in searched_tab.locator("#front tbody tr").all_inner_texts()]
    assert len(rows) == 1 + len(MODELS)
    assert rows[0] == "dense openvino float32 26.4 ms 1.0 × 100 0"
    (chosen,) = (row for row in rows if "chosen" in row)
    assert chosen == (
        "class token last, merge 22 % every 2 blocks from 3, class attention 0.1, int8 chosen openvino bfloat16 "
        "8.70 ms 3.0 × 92.6 90.3 to 94.9 0.026 0.022 to 0.03 −0.2 −2.5 to +2.1 6.00 MB"
    )


def test_the_listing_is_short(pair: Any) -> None:
    said = models_of(pair)["fast"]
    assert "search" not in said["metrics"]
    assert len(str(said["search"])) < 4000
