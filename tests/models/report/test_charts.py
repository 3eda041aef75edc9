"""The charts hold the report's figures where they belong, on the page and in a picture."""

import itertools
import random
import re
import warnings
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest

from milkweed.models.report import CurvePoint, RunReport, plot_report
from milkweed.models.report.charts import best_at_size, draw_history, draw_report, measured, page_charts
from milkweed.models.report.drawing import PAGE, figure, style
from milkweed.models.report.terms import candidate_text


def titles(svgs: list[str]) -> list[dict[str, str]]:
    """The drawing of what each text of a pointer belongs to, by chart and text."""
    return [
        {unescape(text): drawn for text, drawn in re.findall(r"<g><title>(.*?)</title>(.*?)</g>", svg, re.S)}
        for svg in svgs
    ]


def test_a_pointer_names_every_candidate_and_layer(full: RunReport) -> None:
    charts = page_charts(full)
    for found in titles(charts["size"]):
        assert found.keys() == {candidate_text(candidate) for candidate in full.curve}
        chosen = [text for text, drawn in found.items() if "var(--series-2)" in drawn]
        assert chosen == [candidate_text(full.curve[15])]
    for svg, found, name in zip(charts["layers"], titles(charts["layers"]), ("error", "sensitivity"), strict=True):
        known = [row for row in full.layers if getattr(row, name) is not None]
        assert [text.partition(":")[0] for text in found] == [row.name for row in known]
        for label in ("qkv", "proj", "fc1", "fc2", "kept dense"):
            assert svg.count(f">{label}</text>") == 1


def test_many_kinds_of_layers_share_the_last_colour(full: RunReport) -> None:
    rows = [replace(full.layers[0], name=f"blocks.0.part{number}", kind="monarch") for number in range(8)]
    axis = draw_report(replace(full, curve=(), layers=tuple(rows))).axes[0]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [*(f"part{n}" for n in range(5)), "other"]
    assert [bar.get_facecolor() == axis.patches[-1].get_facecolor() for bar in axis.patches] == [False] * 5 + [True] * 3


def test_steps_go_on_through_the_phases(full: RunReport) -> None:
    with style():
        axis = figure(PAGE, 100).subplots()
        draw_history(axis, full, "top1")
    blocks, whole = (line.get_xydata().tolist() for line in axis.lines)
    assert blocks == [[19, 61.9], [39, 63.9], [59, 65.9]]
    assert whole == [[59 + 19, 67.9], [59 + 39, 69.9], [59 + 59, 71.9]]


@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_one_candidate_is_drawn_and_nothing_is_no_chart(bare: RunReport, kl: float) -> None:
    one = CurvePoint(label="$a_b$ <&>", share=1.0, parameters=1, kl=kl, chosen=True)
    (svg,) = page_charts(replace(bare, curve=(one,)))["size"]
    text = f"$a_b$ &lt;&amp;&gt;: 1 parameters (100.0 %), KL {kl:.3f}"
    assert f"<title>{text}</title>" in svg
    lonely = replace(bare, curve=(replace(one, kl=None),), history=({"step": 1, "loss": 2.0},))
    for report in (bare, lonely):
        assert page_charts(report) == {"size": [], "history": [], "layers": []}


def test_the_picture_has_candidates_and_layers_at_their_figures(full: RunReport) -> None:
    axes = draw_report(full).axes
    assert [axis.get_title() for axis in axes] == [
        "top-1 accuracy, %",
        "KL from the dense model, nats",
        "relative error of the outputs",
        "sensitivity: KL by this layer at half its weights, nats",
    ]
    for axis, name in zip(axes, ("top1", "kl"), strict=False):
        drawn = {(x, y) for line in axis.lines for x, y in line.get_xydata() if len(line.get_xydata()) == 1}
        assert drawn == {(100 * candidate.share, getattr(candidate, name)) for candidate in full.curve}
    for axis, name in zip(axes[2:], ("error", "sensitivity"), strict=True):
        bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in axis.patches}
        known = enumerate(getattr(row, name) for row in full.layers)
        assert bars == {place: value for place, value in known if value is not None}


def test_a_report_without_figures_is_no_picture(bare: RunReport, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_report(bare, tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("name", "sign"), [("kl", -1), ("top1", 1)])
def test_best_at_size_is_what_nothing_as_small_matches(seed: int, name: str, sign: int) -> None:
    rng = random.Random(seed)
    curve = [
        # Few values, so that sizes and figures coincide.
        CurvePoint(
            label=str(number),
            share=rng.randint(1, 6) / 6,
            parameters=number,
            kl=rng.choice([None, rng.randint(0, 5) / 5]),
            top1=float(rng.randint(0, 6)),
        )
        for number in range(20)
    ]
    figures = {(candidate.share, sign * value) for candidate, value in measured(curve, name)}
    wanted = {
        (share, value)
        for share, value in figures
        if all(value > v for s, v in figures if s < share) and all(value >= v for s, v in figures if s == share)
    }
    best = [(candidate.share, sign * getattr(candidate, name)) for candidate in best_at_size(curve, name)]
    assert best == sorted(wanted)


def test_a_machine_that_stalls_brings_no_warning(full: RunReport, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=2)  # seconds
    monkeypatch.setattr("matplotlib.legend.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert page_charts(full)
    assert next(clock) > 0  # a legend was placed
