"""The charts hold the report's figures where they belong, on the page and in a picture."""

import random
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from milkweed.models.report import Candidate, RunReport, plot_report
from milkweed.models.report.charts import best_at_size, draw_report, measured, page_charts
from milkweed.models.report.terms import candidate_text


@pytest.fixture(scope="module")
def charts(full: RunReport) -> dict[str, list[str]]:
    return page_charts(full)


def off_line(x: list[float], y: list[float]) -> float:
    """How far the points are from the straight line that fits them best."""
    slope, start = np.polyfit(x, y, 1)
    return float(np.abs(np.asarray(y) - slope * np.asarray(x) - start).max())


def test_every_candidate_is_drawn_at_its_figures(full: RunReport, charts: dict[str, list[str]]) -> None:
    for svg, name in zip(charts["size"], ("top1", "kl"), strict=True):
        places = {}
        for text, group in re.findall(r"<g><title>(.*?)</title>(.*?)</g>\s*</g>", svg, flags=re.DOTALL):
            ((x, y),) = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', group)
            places[unescape(text)] = (float(x), -float(y))
            assert ("var(--series-2)" in group) == (unescape(text) == candidate_text(full.curve[15])), "the chosen one"
        assert set(places) == {candidate_text(candidate) for candidate in full.curve}
        x, y = zip(*(places[candidate_text(candidate)] for candidate in full.curve), strict=True)
        assert off_line([candidate.share for candidate in full.curve], list(x)) < 0.01
        values = [getattr(candidate, name) for candidate in full.curve]
        # KL spans decades: the axis is logarithmic.
        assert off_line(values if name == "top1" else list(np.log(values)), list(y)) < (0.01 if name == "top1" else 0.5)
        assert (y[0] < y[-1]) == (name == "top1")


def test_bars_are_as_high_as_the_figures(full: RunReport, charts: dict[str, list[str]]) -> None:
    for svg, name in zip(charts["layers"], ("error", "sensitivity"), strict=True):
        heights = {}
        for text, path in re.findall(r'<g><title>(.*?)</title>\s*<path d="(.*?)"', svg, flags=re.DOTALL):
            y = [float(value) for value in re.findall(r"[ML] [\d.-]+ ([\d.-]+)", path)]
            heights[unescape(text).partition(":")[0]] = max(y) - min(y)
        values = {row.name: value for row in full.layers if (value := getattr(row, name)) is not None}
        assert heights.keys() == values.keys()
        ratios = [heights[layer] / value for layer, value in values.items()]
        assert max(ratios) == pytest.approx(min(ratios), rel=1e-3)
        for part in ("qkv", "proj", "fc1", "fc2", "kept dense"):
            assert f">{part}</text>" in svg
        ticks = re.findall(r">(\d+)</text>", svg)
        assert ticks[:12] == [str(block) for block in range(12)]


@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_one_candidate_is_drawn_and_nothing_is_no_chart(bare: RunReport, kl: float) -> None:
    one = Candidate(label="$a_b$ <&>", share=1.0, parameters=1, kl=kl, chosen=True)
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
        Candidate(
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
