"""The charts hold the report's figures where they belong."""

import itertools
import re
import warnings
from dataclasses import replace
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest

from milkweed.models.report import LayerRow, RunReport
from milkweed.models.report.charts import draw_history, draw_layers, page_charts
from milkweed.models.report.drawing import PAGE, figure, style


def titles(svg: str) -> list[str]:
    """The texts that a pointer shows."""
    return [unescape(text) for text in re.findall(r"<g><title>(.*?)</title>.*?</g>", svg, re.S)]


def drawn(report: RunReport, name: str | None = None) -> Any:
    """The axis of a figure of the history, or of the layers."""
    with style():
        axis = figure(PAGE, 270).subplots()
        draw_layers(axis, report) if name is None else draw_history(axis, report, name)
    return axis


def test_a_pointer_names_every_layer(full: RunReport) -> None:
    charts = page_charts(full)
    assert charts["history"] == []
    (svg,) = charts["layers"]
    known = [row for row in full.layers if row.error is not None]
    assert [text.partition(":")[0] for text in titles(svg)] == [row.name for row in known]
    assert titles(svg)[0] == f"blocks.0.attn.qkv: error {known[0].error:.3f}, monarch, 2 blocks, rank 48"
    for label in ("qkv", "proj", "fc1", "fc2", "kept dense"):
        assert svg.count(f">{label}</text>") == 1


def test_bars_are_as_high_as_the_errors(full: RunReport) -> None:
    bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in drawn(full).patches}
    assert bars == {place: row.error for place, row in enumerate(full.layers) if row.error is not None}


def test_many_kinds_of_layers_share_the_last_colour(full: RunReport) -> None:
    rows = [replace(full.layers[0], name=f"blocks.0.part{number}", kind="monarch") for number in range(8)]
    axis = drawn(replace(full, layers=tuple(rows)))
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [*(f"part{n}" for n in range(5)), "other"]
    assert [bar.get_facecolor() == axis.patches[-1].get_facecolor() for bar in axis.patches] == [False] * 5 + [True] * 3


def test_the_course_of_training_is_drawn_by_step(trained: RunReport) -> None:
    charts = page_charts(trained)
    assert (len(charts["history"]), charts["layers"]) == (2, [])
    for name, scale in (("loss", "log"), ("top1", "linear")):
        axis = drawn(trained, name)
        (line,) = axis.lines
        assert line.get_xydata().tolist() == [[row["step"], row[name]] for row in trained.history if name in row]
        assert (axis.get_yscale(), axis.get_legend()) == (scale, None)


def test_names_are_no_markup_and_nothing_is_no_chart(bare: RunReport, full: RunReport) -> None:
    one: LayerRow = replace(full.layers[0], name="$a_b$ <&>", error=0.5)
    (svg,) = page_charts(replace(bare, layers=(one,)))["layers"]
    assert "<title>$a_b$ &lt;&amp;&gt;: error 0.500, monarch, 2 blocks, rank 48</title>" in svg
    lonely = replace(bare, layers=(replace(one, error=None),), history=({"step": 1, "loss": 2.0},))
    for report in (bare, lonely):
        assert page_charts(report) == {"history": [], "layers": []}


def test_a_machine_that_stalls_brings_no_warning(full: RunReport, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=2)  # seconds
    monkeypatch.setattr("matplotlib.legend.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert page_charts(full)
