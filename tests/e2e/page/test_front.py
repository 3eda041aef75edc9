"""The front of a model that a search made: a picture, a table, and what the model says of itself."""

from typing import TYPE_CHECKING, Any

import pytest

from ...support.frontiers import MODELS
from .tab import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

CLAIM = (
    "fast: speedup 3.0 over its dense model in openvino float32 (1.7 over openvino bfloat16), "
    "top-1 agreement 92.6 % [90.3, 94.9]"
)
MEASURED = (
    "Measured when it was made, with 500 photographs, on AMD EPYC, 2 cores: 8.70 ms instead of 26.4 ms an image, "
    "one at a time. "
    "All that was measured"
)


def test_a_model_says_what_its_search_measured(searched_tab: "Page") -> None:
    tab = searched_tab
    assert (tab.input_value("#model"), tab.input_value("#beside")) == ("fast", "dense")
    for beside in ("dense", ""):
        tab.select_option("#beside", beside)
        expect(tab.locator("#claims .lead")).to_have_text([CLAIM])
        expect(tab.locator("#claims .hint")).to_have_text([MEASURED])
        expect(tab.locator("#front .last")).to_have_text("fast, from 11 models and 500 photographs")
    tab.select_option("#model", "dense")
    expect(tab.locator("#front")).to_be_hidden()
    expect(tab.locator("#claims")).to_be_empty()
    tab.select_option("#model", "fast")
    expect(tab.locator("#front")).to_be_visible()
    expect(tab.locator("#front .dot")).to_have_count(len(MODELS))


def test_the_picture_is_to_scale(searched_tab: "Page") -> None:
    """The front for one image at a time is another one than that for eight, by which the record is sorted."""
    front = searched_tab.locator("#front svg")
    share = "(parts, name) => parts.map((part) => part.getAttribute(name)).map(Number.parseFloat)"

    def shares(selector: str, name: str) -> Any:
        return front.locator(selector).evaluate_all(share, name)

    ticks = dict(zip(front.locator(":scope > text").all_text_contents(), shares(":scope > text", "x"), strict=True))
    lines = dict(zip(front.locator(":scope > text").all_text_contents(), shares(":scope > text", "y"), strict=True))
    per_ms, per_root = ticks["25"] / 25, lines["0.08"] / 0.08**0.5
    assert (per_ms, per_root) > (0, 0)
    assert (ticks["5"], lines["0.009"]) == pytest.approx((5 * per_ms, per_root * 0.009**0.5))
    assert "8.70 ms" in (front.locator(".dot.chosen title").text_content() or "")
    (cx, _), (cy, _) = shares(".dot.chosen circle", "cx"), shares(".dot.chosen circle", "cy")
    assert cx == pytest.approx(per_ms * 8.7)
    ends = [shares(".dot.chosen line", name)[0] for name in ("y1", "y2")]
    assert [cy, *ends] == pytest.approx([per_root * kl**0.5 for kl in (0.0261, 0.0261 * 0.85, 0.0261 * 1.15)], rel=1e-3)
    path = {name: shares(".path", name) for name in ("x1", "y1", "x2", "y2")}
    assert len(path["x1"]) == 6
    assert (path["x1"][1:], path["y1"][1:]) == (path["x2"][:-1], path["y2"][:-1])  # it is one line
    assert (path["x1"][1], path["y1"][1]) == (cx, cy)
    expect(front.locator(".name")).to_have_text(["dense, 26.4 ms", "chosen", "8.70 ms, 3.0 ×"])


def test_the_table_has_every_model_with_its_intervals(searched_tab: "Page") -> None:
    searched_tab.get_by_text("As a table").press("Enter")
    rows = [" ".join(row.split()) for row in searched_tab.locator("#front tbody tr").all_inner_texts()]
    assert len(rows) == 1 + len(MODELS)
    assert rows[0] == "dense openvino float32 26.4 ms 1.0 × 100 0"
    (chosen,) = (row for row in rows if "chosen" in row)
    assert chosen == (
        "class token last, merge 22 % every 2 blocks from 3, class attention 0.1, int8 chosen openvino bfloat16 "
        "8.70 ms 3.0 × 1.7 × 92.6 90.3 to 94.9 0.026 0.022 to 0.03 −0.5 −0.9 to −0.1 −0.2 −2.5 to +2.1 6.00 MB"
    )


def test_the_listing_is_short(models: Any) -> None:
    said = models["fast"]
    assert "search" not in said["metrics"]
    assert len(str(said["search"])) < 4000
