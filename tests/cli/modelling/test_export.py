"""Tests what `milkweed export` writes and prints, and what it refuses."""

from pathlib import Path

import onnx
import pytest

from milkweed.models import ExportError, read_config
from milkweed.models.onnx import export as export_module

from ...support.command import Milkweed, Refused


def test_export_writes_a_file_and_says_what_it_is(
    milkweed: Milkweed, dense_bundle: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.onnx"
    ran = milkweed("export", dense_bundle, "--onnx", file, "--json").ok()
    said = ran.document
    assert said["file"] == str(file)
    assert said["version"] == read_config(dense_bundle).version
    assert (said["arch"], said["dtype"], said["opset"]) == ("vitae_basic", "float32", 20)
    assert said["bytes"] == file.stat().st_size > said["weight_bytes"] > 40_000 * 4
    assert said["operators"]["Conv"] == sum(node.op_type == "Conv" for node in onnx.load(str(file)).graph.node)
    assert 0 < said["verified"]["error"] <= said["verified"]["limit"] == 1e-4

    assert refused("export", dense_bundle, "--onnx", file) == f"{file}: exists already; --force replaces it"
    monkeypatch.setattr(export_module, "write_verified", lambda *_: pytest.fail("it was to be refused at once"))
    refused("export", dense_bundle, "--onnx", file)

    report = export_module.ExportReport(
        read_config(dense_bundle), "float16", 20, 1_500_000, 1_400_000, {"MatMul": 3, "Add": 1},
        export_module.Verified(0.0012, 0.02, 4, "torch 2", "onnxruntime 1"), 1.0,
    )  # fmt: skip
    monkeypatch.setattr(export_module, "export_bundle", lambda *_, **__: report)
    text = milkweed("export", dense_bundle, "--onnx", file, "--dtype", "float16", "--force").out
    assert f"file       {file} (opset 20, float16, 1.50 MB)" in text
    assert "operators  3 MatMul, 1 Add" in text
    assert "0.0012 of the largest (limit 0.02), onnxruntime 1 against torch 2, 4 images" in text


def test_export_refuses_what_it_cannot_do(
    refused: Refused, dense_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.onnx"
    assert "int8" in refused("export", dense_bundle, "--onnx", file, "--dtype", "int8", code=2)
    assert "--onnx" in refused("export", dense_bundle, code=2)
    assert "no such folder" in refused("export", tmp_path / "none", "--onnx", file)
    assert refused("export", dense_bundle, "--onnx", tmp_path, "--force") == f"{tmp_path}: is a folder"

    def fail(*_: object, **__: object) -> None:
        raise ExportError("it branches")

    monkeypatch.setattr(export_module, "write_onnx", fail)
    line = refused("export", dense_bundle, "--onnx", file)
    assert line == f"bundle {dense_bundle}: cannot be exported as ONNX: it branches"
    assert list(tmp_path.iterdir()) == []
