"""What a recorded forward is worth: one row a model, written wherever it is called from."""

import json
from pathlib import Path

import pytest

from milkweed.bench.studies import lanes


def test_figures_are_written_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lanes", "--rounds", "1"])
    lanes.main()
    [row] = json.loads((tmp_path / "bench" / "results" / "lanes.json").read_text())["rows"]
    assert row["ratio"] == pytest.approx(row["Python"]["wall_ms"] / row["recorded"]["wall_ms"], abs=0.01)
    assert row["images"] >= 8
    assert list(row["one_thread_ms"]) == ["1", "4", "8"]
    assert 0 < row["one_thread_ms"]["1"] < row["one_thread_ms"]["8"]
