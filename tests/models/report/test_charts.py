"""The drawings hold the report's figures where they belong, and the page's colours and names."""

import re
from dataclasses import replace
from html import unescape
from itertools import pairwise

import matplotlib
import numpy as np
import pytest

from milkweed.models.report import Candidate, RunReport
from milkweed.models.report.charts import draw, history_chart, layer_chart, size_chart
from milkweed.models.report.curve import candidate_text

Drawings = dict[str, tuple[str, str]]
"""Of each chart, the wide and the narrow one."""


@pytest.fixture(scope="module")
def drawings(full: RunReport) -> Drawings:
    charts = (("size", size_chart), ("layers", layer_chart), ("history", history_chart))
    found = {name: draw(name, chart, full) for name, chart in charts}
    return {name: drawing for name, drawing in found.items() if drawing is not None}


def points(svg: str) -> dict[str, list[tuple[float, float]]]:
    """Where the marks with a text are: x and y of each, y upwards."""
    found: dict[str, list[tuple[float, float]]] = {}
    for text, group in re.findall(r"<g><title>(.*?)</title>(.*?)</g>\s*</g>", svg, flags=re.DOTALL):
        for x, y in re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', group):
            found.setdefault(unescape(text), []).append((float(x), -float(y)))
    return found


def heights(svg: str) -> dict[str, float]:
    """Heights of the bars with a text."""
    found = {}
    for text, path in re.findall(r'<g><title>(.*?)</title>\s*<path d="(.*?)"', svg, flags=re.DOTALL):
        y = [float(value) for value in re.findall(r"[ML] [\d.-]+ ([\d.-]+)", path)]
        found[unescape(text)] = max(y) - min(y)
    return found


def off_line(x: list[float], y: list[float]) -> float:
    """How far the points are from the straight line that fits them best."""
    slope, start = np.polyfit(x, y, 1)
    return float(np.abs(np.asarray(y) - slope * np.asarray(x) - start).max())


@pytest.mark.parametrize("narrow", [False, True])
def test_every_candidate_is_drawn_at_its_figures(full: RunReport, drawings: Drawings, narrow: bool) -> None:
    places = points(drawings["size"][narrow])
    assert set(places) == {candidate_text(candidate) for candidate in full.curve}
    first, second = zip(*(places[candidate_text(candidate)] for candidate in full.curve), strict=True)
    shares = [candidate.share for candidate in full.curve]
    assert off_line(shares, [x for x, _ in first]) < 0.01
    assert off_line(shares, [x for x, _ in second]) < 0.01
    assert off_line([candidate.top1 or 0 for candidate in full.curve], [y for _, y in first]) < 0.01
    # KL spans decades: the axis is logarithmic.
    assert off_line([np.log(candidate.kl or 1) for candidate in full.curve], [y for _, y in second]) < 0.5
    assert (first[0][1] < first[-1][1]) & (second[0][1] > second[-1][1])


def test_the_chosen_one_is_marked(full: RunReport, drawings: Drawings) -> None:
    svg = drawings["size"][0]
    marked = re.findall(r"<g><title>([^<]*)</title>(?:(?!</g>).)*var\(--chosen\)", svg, flags=re.DOTALL)
    assert marked == [candidate_text(full.curve[15])] * 2


def test_bars_are_as_high_as_the_figures(full: RunReport, drawings: Drawings) -> None:
    svg = drawings["layers"][0]
    bars = heights(svg)
    for name in ("error", "sensitivity"):
        pairs = [
            (height, value)
            for row in full.layers
            for text, height in bars.items()
            if text.startswith(f"{row.name}: {name} ") and (value := getattr(row, name)) is not None
        ]
        assert len(pairs) == sum(getattr(row, name) is not None for row in full.layers)
        ratios = [height / value for height, value in pairs]
        assert max(ratios) == pytest.approx(min(ratios), rel=1e-3)
    for part in ("qkv", "proj", "fc1", "fc2", "kept dense"):
        assert f">{part}</text>" in svg


def test_blocks_are_marked_by_their_number(drawings: Drawings) -> None:
    for svg, every in zip(drawings["layers"], (1, 2), strict=True):
        ticks = re.findall(r">(\d+)</text>", svg)
        wanted = [str(block) for block in range(0, 12, every)]
        assert "\n".join(wanted) in "\n".join(ticks)
        assert len(ticks) <= len(wanted) + 2  # the zeros of the two axes of figures


def test_phases_follow_each_other(full: RunReport, drawings: Drawings) -> None:
    """Steps start again at 0 in the second phase; the drawing goes on to the right."""
    evaluated = [row for row in full.history if "kl" in row]
    svg = drawings["history"][0]
    dots = re.findall(r'<use xlink:href="#[^"]*" x="([\d.]+)" y="([\d.]+)" style="[^"]*var\(--series-(\d)\)', svg)
    colors = [color for _, _, color in dots]
    assert colors == ["1"] * 3 + ["2"] * 3 + ["1"] * 3 + ["2"] * 3  # top-1, then KL; blocks, then the whole
    for begin in (0, 6):
        xs = [float(x) for x, _, _ in dots[begin : begin + 6]]
        assert all(a < b for a, b in pairwise(xs))
    ys = [-float(y) for _, y, _ in dots]
    assert off_line([float(row["top1"] or 0) for row in evaluated], ys[:6]) < 0.01
    assert off_line([float(row["kl"] or 0) for row in evaluated], ys[6:]) < 0.01


def test_nothing_to_draw_is_no_drawing(bare: RunReport) -> None:
    lonely = replace(bare, curve=(Candidate(label="a", share=1.0, parameters=1),), history=({"step": 1, "loss": 2.0},))
    for report in (bare, lonely):
        for chart in (size_chart, layer_chart, history_chart):
            assert draw("x", chart, report) is None


@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_one_candidate_is_drawn(bare: RunReport, kl: float) -> None:
    one = replace(bare, curve=(Candidate(label="$a_b$ <&>", share=1.0, parameters=1, kl=kl, chosen=True),))
    drawn = draw("x", size_chart, one)
    assert drawn is not None
    assert list(points(drawn[0])) == [f"$a_b$ <&>: 1 parameters (100.0 %), KL {kl:.3f}"]


def test_a_users_style_changes_nothing(full: RunReport, drawings: Drawings) -> None:
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "mine"}):
        assert draw("size", size_chart, full) == drawings["size"]
        assert matplotlib.rcParams["font.size"] == 30
