"""A search's record is read and checked, drawn with its intervals, and shown on the page with what it cannot show."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from milkweed.models.bundle.strict_json import parse_json
from milkweed.models.report import Frontier, RunReport, Totals, plot_frontier, write_report
from milkweed.models.report.drawing import style
from milkweed.models.report.frontier import ConfidenceInterval, pareto_frontier
from milkweed.models.report.frontier_chart import draw_frontier, frontier_charts, ticks, tried_text
from milkweed.models.report.verdict import doubts, verdict

from ...support.frontiers import MODELS, record
from .test_page import Reader


@pytest.fixture(scope="module")
def frontier() -> Frontier:
    return Frontier.from_dict(record())


def test_a_record_is_read_as_it_was_written(frontier: Frontier) -> None:
    assert frontier.batches == (8, 1)
    assert [model.name for model in frontier.models] == [row[0] for row in MODELS]
    assert frontier.chosen.quality.top1_of_dense == 77.4
    assert [model.on_front for model in frontier.models] == [
        model in pareto_frontier(frontier.models, 8) for model in frontier.models
    ]


def spoilt(*path: Any, value: Any) -> dict[str, Any]:
    found = record()
    inner: Any = found
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return found


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("text", r"search: Input should be an object"),
        (spoilt("models", 3, "chosen", value=False), "one model has to be the chosen one"),
        (spoilt("models", 4, "chosen", value=True), "one model has to be the chosen one"),
        (spoilt("models", 4, "ms", value={"8": 1.0}), "ms of .*: must be above 0, at the dense model's batch"),
        (spoilt("dense", "ms", value={}), "dense.ms has to have times above 0"),
        (
            spoilt("models", 0, "quality", "kl", "low", value=float("nan")),
            r"search.models\[0\].quality.kl.low: .*finite",
        ),
        (spoilt("models", 0, "bytes", value="6 MB"), r"search.models\[0\].bytes: .*integer"),
    ],
)
def test_a_record_that_makes_no_sense_is_named(document: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Frontier.from_dict(document)


def test_a_panel_for_each_batch_size_has_its_own_front_and_all_intervals(frontier: Frontier) -> None:
    with style():
        eight, one = draw_frontier(frontier).axes
    assert eight.get_xlabel() == "latency, ms/image, batch 8"
    assert one.get_xlabel() == "latency, ms/image, batch 1"
    line = eight.lines[0].get_xydata().tolist()
    assert line == [[row[2], row[4]] for row in MODELS if row[8]]
    # At one image 8.0 ms, what merges more is beaten by the other one of 8.0 ms.
    assert one.lines[0].get_xydata().tolist()[:2] == [[8.0, 0.0417], [8.7, 0.0261]]
    bars = {
        tuple(round(float(end), 6) for end in segment.ravel())
        for lines in eight.collections
        for segment in lines.get_segments()
    }
    for model in frontier.models:
        found = model.quality.kl
        assert tuple(round(end, 6) for end in (model.ms[8], found.low, model.ms[8], found.high)) in bars
    assert [text.get_text() for text in eight.texts] == ["dense\n26.4 ms", "chosen\n6.80 ms, 3.9×"]
    assert [text.get_text() for text in one.texts] == ["dense\n26.4 ms", "chosen\n8.70 ms, 3.0×"]
    for axis in (eight, one):
        bottom, top = axis.get_ylim()
        assert bottom > max(model.quality.kl.high for model in frontier.models)
        assert top < 0  # the dense model, at 0, is at the top
        assert list(axis.get_yticks()) == [0, 0.005, 0.02, 0.05]


@pytest.mark.parametrize(
    ("high", "want"),
    [
        (0.0903, [0, 0.005, 0.02, 0.05]),
        (0.001, [0, 5e-5, 2e-4, 5e-4, 1e-3]),
        (2.5, [0, 0.2, 0.5, 1, 2]),
        (1e-5, [0, 1e-5]),
    ],
)
def test_ticks_keep_their_distance(high: float, want: list[float]) -> None:
    assert ticks(high) == pytest.approx(want)


def test_names_lie_inside_and_on_nothing(frontier: Frontier) -> None:
    for spread in (1.0, 0.15, 3.0):  # the compressed models near dense, far to the left, and slower
        models = tuple(
            replace(model, ms={batch: ms if model.name == "dense" else ms * spread for batch, ms in model.ms.items()})
            for model in frontier.models
        )
        with style():
            drawn = draw_frontier(replace(frontier, models=models))
            drawn.draw_without_rendering()
        for axis in drawn.axes:
            box, (dense, chosen) = axis.get_window_extent(), (text.get_window_extent() for text in axis.texts)
            assert not dense.overlaps(chosen)
            for text in (dense, chosen):
                assert box.x0 - 1 <= text.x0 < text.x1 <= box.x1 + 1
                assert box.y0 <= text.y0 < text.y1 <= box.y1 + 1


def test_a_pointer_names_every_model(frontier: Frontier) -> None:
    for svg, batch in zip(frontier_charts(frontier), (8, 1), strict=True):
        titles = dict(re.findall(r"<g><title>(.*?)</title>(.*?)</g>", svg, re.S))
        assert {unescape(title) for title in titles} == {tried_text(model, batch) for model in frontier.models}
        (chosen,) = (title for title, drawn in titles.items() if "var(--series-2)" in drawn)
        assert unescape(chosen) == tried_text(frontier.chosen, batch)
    assert tried_text(frontier.chosen, 8) == (
        "class token last, merge 22 % every 2 blocks from 3, class attention 0.1, int8 (openvino bfloat16): 6.80 ms, "
        "3.03×, top-1 agreement 92.6 %, KL 0.026, top-1 −0.2, 6.00 MB"
    )


@pytest.mark.slow
def test_the_picture_is_the_same_bytes_each_time(frontier: Frontier, tmp_path: Path) -> None:
    for suffix, begins in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        first, second = (plot_frontier(frontier, tmp_path / f"{n}{suffix}").read_bytes() for n in range(2))
        assert first == second
        assert first.startswith(begins)
    with pytest.raises(ValueError, match=r"must end in \.svg or \.png"):
        plot_frontier(frontier, tmp_path / "front.pdf")


def test_doubts_say_what_so_many_images_cannot_tell() -> None:
    chose, known, alike = doubts(Frontier.from_dict(record()))
    assert chose.startswith("the held-out images chose among the models")
    assert known == (
        "by 500 images the chosen model's expected change of top-1 lies between −0.9 and −0.1 points (95 %): more "
        "would narrow it"
    )
    assert alike.startswith("500 images cannot tell the chosen model from 5 of the 7 others on the Pareto front")
    _, known, alike = doubts(Frontier.from_dict(record(labelled=False, images=50)))
    assert known == "by 50 images between 85.3 and 99.9 % of answers stay the same (95 %): more would narrow it"
    assert "from 5 of the 7 others on the Pareto frontier by agreement: " in alike


def test_a_promise_that_costs_the_model_its_use_is_told(frontier: Frontier) -> None:
    chosen = frontier.chosen
    lost = replace(chosen.quality, expected=ConfidenceInterval(-53.2, -58.4, -47.6))
    told, *_ = doubts(replace(frontier, models=(replace(chosen, quality=lost),)))
    assert told.startswith("what meets the target is 53.2 points less accurate than the dense model")
    lost = replace(chosen.quality, expected=None, top1=None, agreement=ConfidenceInterval(40.0, 30.0, 50.0))
    told, *_ = doubts(replace(frontier, models=(replace(chosen, quality=lost),)))
    assert told.startswith("what meets the target differs on 60.0 % of images from the dense model")


def test_an_interval_without_width_is_no_certainty(frontier: Frontier) -> None:
    chosen = frontier.chosen
    sure = replace(chosen, quality=replace(chosen.quality, agreement=ConfidenceInterval(100, 100, 100)))
    _, said, *_ = doubts(replace(frontier, images=60, models=(sure,)))
    assert said.startswith("60 images all got the dense model's answer")
    assert "up to 5.0 % of others" in said


@pytest.fixture(scope="module")
def searched(frontier: Frontier) -> RunReport:
    return RunReport(
        kind="compress",
        arch="deit_tiny_patch16_224",
        version="3f2a91c04b7d",
        measured_on="CPU, 8 at a time",
        frontier=replace(frontier, notes=("skipped <b>.jpg",)),
        totals_before=Totals(parameters=5_717_416, macs=1_258_000_000, bytes=22_869_664, latency_ms=26.4),
        totals_after=Totals(parameters=5_717_416, macs=818_000_000, bytes=6_000_000, latency_ms=6.8),
        warnings=tuple(doubts(frontier)),
    )


def test_the_report_of_a_search_goes_through_its_file(searched: RunReport) -> None:
    assert RunReport.from_dict(parse_json(write_report(searched)["report.json"])) == searched


def test_the_page_has_the_picture_the_intervals_and_the_notes(searched: RunReport) -> None:
    page = Reader(write_report(searched)["report.html"].decode())
    assert page.elements["svg"] == 2
    (models,) = page.tables
    assert models[0] == [
        "model",
        "ms, batch 8",
        "ms, batch 1",
        "speedup, over bfloat16",
        "KL",
        "top-1 agreement, %",
        "expected change of top-1",
        "counted",
        "size",
    ]
    assert len(models) == 1 + len(MODELS)
    (chosen,) = (row for row in models if "chosen" in row[0])
    assert chosen[0].startswith(searched.frontier.chosen.name)  # type: ignore[union-attr]
    assert chosen[0].endswith("openvino bfloat16")
    assert chosen[1:] == [
        "6.80", "8.70", "3.03×, 1.72×", "0.026 [0.022, 0.030]", "92.6 [90.3, 94.9]",
        "−0.5 [−0.9, −0.1]", "−0.2 [−2.5, +2.1]", "6.00 MB",
    ]  # fmt: skip
    assert "skipped <b>.jpg" in page.words
    assert (
        "It gives the dense model's answer on 92.6 % of 500 images. Times are medians in turns with the dense "
        in page.words
    )
    assert "model, on AMD EPYC, 2 cores; the latency above is of CPU, 8 at a time" in page.words


def test_the_verdict_tells_speed_where_no_weight_went_away(searched: RunReport) -> None:
    assert verdict(searched).sentence.endswith(
        "It has the same parameters (5.72 M) and does 65.0 % of the multiply-accumulates; its speedup is 3.88 "
        "(6.80 ms instead of 26.4 ms for an image)."
    )
    before, after = searched.totals_before, searched.totals_after
    assert before is not None
    assert after is not None
    same = replace(searched, totals_after=replace(after, macs=before.macs))
    assert verdict(same).sentence.endswith(
        "1.26 G multiply-accumulates for an image; its speedup is 3.88 (6.80 ms instead of 26.4 ms for an image)."
    )
