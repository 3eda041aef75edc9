"""A report as a picture: its points and bars stand at the report's figures."""

from dataclasses import replace
from pathlib import Path

import pytest

from milkweed.models.report import RunReport, plot_report
from milkweed.models.report.picture import draw_report


def test_candidates_and_layers_stand_at_their_figures(full: RunReport) -> None:
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
        heights = [bar.get_height() for bar in axis.patches if bar.get_height()]
        known = [getattr(row, name) for row in full.layers]
        assert heights == [value for value in known if value]


def test_the_legend_names_what_has_bars(full: RunReport) -> None:
    one = replace(
        full,
        layers=tuple(
            row if row.name.endswith("fc1") else replace(row, error=None, sensitivity=None) for row in full.layers
        ),
    )
    named = {text.get_text() for text in draw_report(one).axes[2].get_legend().get_texts()}
    assert named - {"kept dense"} == {"fc1"}


def test_a_report_without_figures_is_no_picture(bare: RunReport, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_report(bare, tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []
