"""What the sandbox costs, measured on pictures small enough for a test."""

import json
from pathlib import Path

import pytest

from milkweed.bench import sandbox


def test_rows_of_every_format_and_what_a_child_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sandbox, "SIZES", ((40, 30), (64, 48)))
    monkeypatch.setattr(sandbox, "LARGE", (500, 400))
    monkeypatch.setattr("sys.argv", ["sandbox", "--rounds", "2", "--out", str(tmp_path / "new" / "sandbox.json")])
    sandbox.main()
    document = json.loads((tmp_path / "new" / "sandbox.json").read_text())
    assert [(row["format"], row["width"]) for row in document["rows"]] == [
        (format, width) for width in (40, 64) for format in ("PNG", "TIFF", "BMP", "GIF", "PPM", "AVIF")
    ]
    times = ("inside_wall_ms", "inside_cpu_ms", "sandbox_wall_ms", "sandbox_cpu_ms")
    assert all(0 < row[name] < 1000 for row in document["rows"] for name in times)
    child = document["child"]
    assert 5 < child["small_uss_mb"] <= child["small_rss_mb"] < 100
    assert child["large_rss_mb"] < 100
    assert 10 < child["start_ms"] < 10_000
    assert "'format': 'AVIF'" in capsys.readouterr().out


def test_another_answer_of_the_sandbox_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "cut", lambda image, crop: sandbox.Image.new("RGB", (224, 224)))
    with pytest.raises(RuntimeError, match="GIF: the sandbox gives other bits"):
        sandbox.row("GIF", (40, 30), 1)
