"""The figures' data are the documents' numbers: what a line, a bar or a point stands at."""

from pathlib import Path
from typing import Any

import pytest

from milkweed.bench import plots
from milkweed.bench.labels import label_ends
from milkweed.models.report.drawing import PICTURE, figure, save_picture, style

CPU = {"processor": "EPYC"}


def lines(axis: Any) -> list[list[tuple[float, float]]]:
    """The points of each line of an axis."""
    return [[(float(x), float(y)) for x, y in line.get_xydata()] for line in axis.lines]


def texts(drawn: Any) -> set[str]:
    return {text.get_text() for axis in drawn.axes for text in axis.texts}


def side(wall_ms: float) -> dict[str, float]:
    return {"wall_ms": wall_ms, "wall_iqr_ms": 0.1, "cpu_ms": wall_ms}


def forward(images: int, dense: float, monarch: float, dtype: str = "float32") -> dict[str, Any]:
    row = {"what": "forward", "name": "deit", "dtype": dtype, "images": images}
    return {**row, "dense": side(dense), "monarch": side(monarch)}


def test_throughput_is_images_over_wall_time() -> None:
    rows = [forward(8, 40.0, 20.0), forward(1, 10.0, 8.0), {**forward(8, 1, 1), "what": "mlp"}]
    drawn = plots.model({"rows": rows, "machine": CPU, "settings": {"threads": 2}})
    assert lines(drawn.axes[0]) == [[(1, 100), (8, 200)], [(1, 125), (8, 400)]]
    assert texts(drawn) == {"dense fp32", "Monarch fp32"}
    assert drawn.get_suptitle() == "EPYC, 2 threads"
    with pytest.raises(ValueError, match="no forward was measured"):
        plots.model({"rows": rows[2:], "machine": CPU, "settings": {"threads": 1}})


def kernel(candidate: str, us: float | None, flops: float, moved: float, batch: int = 1) -> dict[str, Any]:
    row = {"section": "mlp", "what": "ViT-B 768-3072", "batch": batch, "candidate": candidate, "us": us}
    return {**row, "flops": flops, "moved_bytes": moved}


ROOF = {
    "machine": CPU,
    "device": {"device": None},
    "settings": {"dtype": "float32", "nblocks": 4, "threads": 1},
    "ceilings": {"bytes_per_second": 1e10, "flops_per_second": 5e10, "cache_bytes": 1},
}


def test_the_roofline_has_the_fastest_of_each_family_at_its_rate() -> None:
    rows = [
        kernel("dense eager", 200.0, 4e6, 1e5),
        kernel("dense", 100.0, 4e6, 1e5),
        kernel("tuned", 50.0, 1e6, 2e4),
        kernel("native", None, 1e6, 2e4),
        {**kernel("peer", 1.0, 0.0, 0.0), "section": "model"},
    ]
    drawn = plots.kernels({**ROOF, "rows": rows})
    roof, dense, monarch = lines(drawn.axes[0])
    assert dense == [(pytest.approx(40), pytest.approx(40))]
    assert monarch == [(pytest.approx(50), pytest.approx(20))]
    assert roof[1] == (pytest.approx(5), pytest.approx(50))  # the ridge: 5e10 over 1e10
    assert roof[0][1] == pytest.approx(roof[0][0] * 10)  # 10 GB/s times FLOP a byte
    assert roof[2][1] == roof[1][1]
    assert {"copy: 10 GB/s", "product: 50 GFLOP/s", "ViT-B ×1"} == texts(drawn)
    assert drawn.axes[0].get_title() == "EPYC, float32, 1 thread, nblocks 4"


def test_no_point_is_made_up() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.kernels({**ROOF, "rows": [kernel("native", None, 1e6, 2e4)]})


def test_decoding_bars_and_batches() -> None:
    rows = [{"method": "b (ours)", "images_per_second": 20.0}, {"method": "a", "images_per_second": 30.0}]
    batches = [
        {"loader": "cpu", "batch": batch, "threads": threads, "images_per_second": 10.0 * batch * threads}
        for threads in (1, 2)
        for batch in (1, 8)
    ]
    drawn = plots.decode({"rows": rows, "batches": batches})
    bars, course = drawn.axes
    assert [bar.get_width() for bar in bars.patches] == [20.0, 30.0]
    assert [label.get_text() for label in bars.get_yticklabels()] == ["b (ours)", "a"]
    assert lines(course) == [[(1, 10), (8, 80)], [(1, 20), (8, 160)]]
    assert texts(drawn) == {"20", "30", "cpu, 1 thread", "cpu, 2 threads"}
    with pytest.raises(ValueError, match="neither was measured"):
        plots.decode({"isolation": [1]})


def test_cpu_of_a_request_adds_up() -> None:
    document = {
        f"{part}_cpu_ms_per_request": ms for part, ms in (("decode", 1.5), ("forward", 2.0), ("overhead", 0.25))
    }
    document |= {"requests_per_second": 470.0, "concurrency": 32, "latency_ms": {"p50": 60.0, "p99": 80.0}}
    bars = plots.http(document).axes[0].patches
    assert [(bar.get_x(), bar.get_width()) for bar in bars] == [(0, 1.5), (1.5, 2.0), (3.5, 0.25)]


def test_labels_that_would_lie_on_each_other_are_moved_apart() -> None:
    with style("test"):
        drawn = figure(PICTURE, 300)
        axis = drawn.subplots()
        axis.plot([0, 1], [0, 100])
        label_ends(axis, [(1, 50, "one", "k"), (1, 51, "two", "k"), (1, 90, "three", "k"), (0, 50, "left", "k")])
        drawn.draw_without_rendering()
        boxes = {text.get_text(): text.get_window_extent() for text in axis.texts}
    assert boxes["two"].y0 > boxes["one"].y0 + 10
    assert not boxes["one"].overlaps(boxes["two"])
    for text in ("three", "left"):
        assert next(each for each in axis.texts if each.get_text() == text).xyann == (7, 0)


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_same_figures_give_the_same_bytes_in_our_style(tmp_path: Path, suffix: str) -> None:
    import matplotlib

    document = {"rows": [forward(1, 10.0, 8.0)], "machine": CPU, "settings": {"threads": 1}}
    first = save_picture(lambda: plots.model(document), tmp_path / "deep" / f"a{suffix}")
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": "mine"}):
        second = save_picture(lambda: plots.model(document), tmp_path / f"b{suffix}")
    assert first.read_bytes() == second.read_bytes()
