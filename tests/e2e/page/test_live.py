"""The live strip, and its arithmetic held against Prometheus' own."""

import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from .tab import SHIP, answering, expect, figure, pick

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_the_live_strip_says_what_metrics_say(page: "Page", pair: Any) -> None:
    page.clock.install(time=0)
    page.reload()
    expect(figure(page, "memory")).to_have_text(re.compile(r"^\d+ MB$|^[\d.]+ GB$"))
    with page.expect_response("**/metrics"):
        page.clock.pause_at(60_000)
    expect(figure(page, "images/s")).to_have_text("–")
    with httpx.Client() as client:
        for _ in range(20):
            assert client.post(pair.url + "/classify", content=SHIP).status_code == 200
    page.clock.fast_forward(10_000)
    expect(figure(page, "images/s")).to_have_text("2.0")
    expect(figure(page, "images/batch")).to_have_text("1.0")
    for name in ("p50", "p99"):
        expect(figure(page, name)).to_have_text(re.compile(r"^[\d.]+ m?s$"))
    assert len(page.locator("#live-line polyline").get_attribute("points").split()) == 1
    for status, said in ((503, "server answers 503"), (429, "ready")):  # what passes is asked for again
        page.route("**/metrics", answering(status), times=1)
        page.clock.fast_forward(5100)
        expect(page.locator("#state")).to_have_text(said)
    expect(page.locator("#live")).to_be_visible()
    page.clock.fast_forward(5100)
    expect(page.locator("#live-line polyline")).to_have_attribute("points", re.compile(r"^\S+ \S+$"))
    page.route("**/metrics", answering(404))
    page.clock.fast_forward(5100)
    expect(page.locator("#live-note")).to_have_text(re.compile("/metrics answers 404 here"))
    expect(page.locator("#live")).to_be_hidden()


def test_the_first_photo_is_in_the_figures_at_once(page: "Page") -> None:
    page.clock.install(time=0)
    page.reload()
    expect(figure(page, "memory")).to_have_text(re.compile("B$"))
    with page.expect_response("**/metrics"):
        page.clock.pause_at(60_000)
    page.clock.run_for(100)  # of the 5,000 after which it would look again
    pick(page, a=SHIP)
    expect(figure(page, "images/batch")).to_have_text("1.0")


def test_a_scrape_is_read_as_prometheus_reads_it(page: "Page", pair: Any) -> None:
    """Also where the name of a model looks like other labels, and with a GPU, which has a limit beside its use."""
    assert httpx.post(pair.url + "/classify", content=SHIP).status_code == 200
    text = httpx.get(pair.url + "/metrics").text + (
        'milkweed_images_total{model="\\"} {outcome=\\"ok\\",",outcome="invalid"} 7.0\n'
        'milkweed_gpu_memory_bytes{kind="free"} 5e+10\n'
        'milkweed_gpu_memory_bytes{kind="weights"} 1.5e+09\n'
        'milkweed_gpu_memory_bytes{kind="activations"} 2.5e+08\n'
    )
    snapshot = page.evaluate("async (text) => (await import('/page/live.js')).snapshotOf(text, 0)", text)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def total(name: str, **labels: str) -> float:
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

    assert snapshot["images"] == total("milkweed_images_total", outcome="ok") > 0
    assert snapshot["batches"] == total("milkweed_batch_size_count") > 0
    assert snapshot["batched"] == total("milkweed_batch_size_sum")
    assert snapshot["waiting"] == total("milkweed_queue_depth_images")
    memory = total("milkweed_container_memory_working_set_bytes") or total("milkweed_process_memory_bytes", kind="rss")
    assert snapshot["memory"] == memory > 0
    assert snapshot["gpu"] == 1.75e9


@pytest.mark.parametrize(
    ("before", "after", "p50", "p99"),
    [
        ([0, 0, 0, 0], [10, 30, 40, 40], 1.5, 3.92),
        ([10, 30, 40, 40], [10, 30, 60, 60], 3.0, 3.98),  # all of them new in the third
        ([0, 0, 0, 0], [0, 0, 1, 4], 4.0, 4.0),  # beyond the last bound: that bound
        ([0, 0, 0, 0], [20, 40, 40, 40], 1.0, 1.98),
        ([5, 5, 5, 5], [5, 5, 5, 5], None, None),
    ],
)
def test_quantiles_are_those_of_prometheus(
    page: "Page", before: list[int], after: list[int], p50: float | None, p99: float | None
) -> None:
    """They are worked out by hand, by the documentation of histogram_quantile; of two methods, together."""
    name = "milkweed_http_request_duration_seconds_bucket"
    texts = [
        "\n".join(
            f'{name}{{code="{code}",le="{bound}",method="{method}",route="/classify"}} {count / 2}'
            for method in ("GET", "POST")
            for code, counts in (("200", scrape), ("503", [99, 99, 99, 99]))
            for bound, count in reversed([*zip(("1.0", "2.0", "4.0", "+Inf"), counts, strict=True)])
        )
        for scrape in (before, after)
    ]
    script = """async (texts) => {
      const { between, snapshotOf } = await import("/page/live.js");
      const { p50, p99 } = between(...texts.map((text, second) => snapshotOf(text, 1000 * second)));
      return [p50, p99];
    }"""
    quantiles = page.evaluate(script, texts)
    assert quantiles == ([None, None] if p50 is None else pytest.approx([p50, p99]))
