"""The live strip, and its arithmetic held against Prometheus' own."""

import re
from typing import TYPE_CHECKING, Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from .drawings import ship
from .tab import answering, expect

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_the_live_strip_says_what_metrics_say(page: "Page", pair: Any) -> None:
    page.clock.install(time=0)
    page.reload()
    expect(page.locator("#live-memory")).to_have_text(re.compile(r"^\d+ MB$|^[\d.]+ GB$"))
    with page.expect_response("**/metrics"):
        page.clock.pause_at(60_000)
    expect(page.locator("#live-rate")).to_have_text("–")
    with httpx.Client() as client:
        for _ in range(20):
            assert client.post(pair.url + "/classify", content=ship()).status_code == 200
    page.clock.fast_forward(10_000)
    expect(page.locator("#live-rate")).to_have_text("2.0")
    expect(page.locator("#live-batch")).to_have_text("1.0")
    for name in ("p50", "p99"):
        expect(page.locator(f"#live-{name}")).to_have_text(re.compile(r"^[\d.]+ m?s$"))
    assert len(page.locator("#live-line polyline").get_attribute("points").split()) == 1
    for status, said in ((503, "server answers 503"), (429, "ready")):  # what passes is asked for again
        page.route("**/metrics", answering(status, ""), times=1)
        page.clock.fast_forward(5100)
        expect(page.locator("#state")).to_have_text(said)
    expect(page.locator("#live")).to_be_visible()
    page.clock.fast_forward(5100)
    expect(page.locator("#live-line polyline")).to_have_attribute("points", re.compile(r"^\S+ \S+$"))
    page.route("**/metrics", lambda route: route.fulfill(status=404))
    page.clock.fast_forward(5100)
    expect(page.locator("#live-note")).to_have_text(re.compile("/metrics answers 404 here"))
    expect(page.locator("#live")).to_be_hidden()


def test_the_parser_reads_what_prometheus_reads(page: "Page", pair: Any) -> None:
    odd = (
        "# HELP x text\n# TYPE x gauge\n"
        'x{a="}{ \\"q\\" \\\\ \\n,=",b=""} 1.5e-3 1700000000000\nx{a="é"} -Inf\n'
        "x{} 7\nx +Inf\n\n"
    )
    for text in (httpx.get(pair.url + "/metrics").text, odd):
        read = page.evaluate(
            "async (text) => (await import('/page/exposition.js')).parseExposition(text)"
            ".map(({ name, labels, value }) => [name, labels, String(value)])",
            text,
        )
        expected = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]
        assert [(name, labels, float(value)) for name, labels, value in read] == expected
        assert len(read) >= 4


def test_quantiles_are_those_of_prometheus(page: "Page") -> None:
    """They are worked out by hand, by the documentation of histogram_quantile."""

    def quantiles(before: list[float], after: list[float], *wanted: float) -> list[float | None]:
        found: list[float | None] = page.evaluate(
            """async ([before, after, wanted]) => {
              const { bucketsBetween, bucketsOf, parseExposition, quantileOf } = await import("/page/exposition.js");
              const read = (counts) => bucketsOf(parseExposition(counts.flatMap((count, place) =>
                ["a", "b"].map((x) => `h_bucket{x="${x}",le="${["1", "2", "4", "+Inf"][place]}"} ${count / 2}`))
                .reverse().join("\\n")), "h");
              const between = bucketsBetween(read(before), read(after));
              return wanted.map((quantile) => quantileOf(between, quantile));
            }""",
            [before, after, wanted],
        )
        return found

    zero = [0.0] * 4
    assert quantiles(zero, [10, 30, 40, 40], 0.25, 0.5, 0.75, 1.0) == [1.0, 1.5, 2.0, 4.0]
    assert quantiles([10, 30, 40, 40], [10, 30, 60, 60], 0.5) == [3.0]  # all of them new in the third
    assert quantiles(zero, [0, 0, 1, 4], 0.1, 0.99) == [2.0 + 2 * 0.4, 4.0]  # beyond the last bound: that bound
    assert quantiles([5, 5, 5, 5], [5, 5, 5, 5], 0.5) == [None]
