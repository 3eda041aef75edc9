"""The process that exports a bundle for a server: what it prints, and how it fails."""

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from milkweed.models import read_config
from milkweed.models.onnx.export_process import main


@pytest.mark.slow
def test_export_process_prints_the_version_and_the_bytes_of_the_weights(colour_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    command = [sys.executable, "-P", "-m", "milkweed.models.onnx.export_process", str(colour_bundle), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    weights = sum(len(each.raw_data) for each in onnx.load(str(file)).graph.initializer)
    assert json.loads(done.stdout) == {"version": read_config(colour_bundle).version, "weight_bytes": weights}
    assert done.stderr == ""


def test_export_process_names_what_is_wrong_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "no-bundle"), str(tmp_path / "model.onnx")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"bundle {tmp_path / 'no-bundle'}: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "model.onnx").exists()
