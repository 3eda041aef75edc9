"""Tests what `milkweed export` writes and prints, and what it refuses."""

import shutil
from pathlib import Path

import onnx
import pytest
import torch

from milkweed.models import ExportError, load_bundle, read_config
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


@pytest.mark.slow
def test_export_into_a_bundle_lets_runtimes_serve_it(
    milkweed: Milkweed, dense_bundle: Path, tmp_path: Path, refused: Refused
) -> None:
    bundle = Path(shutil.copytree(dense_bundle, tmp_path / "b"))
    said = milkweed("export", bundle, "--into", "--json").ok().document
    config = read_config(bundle)
    assert (said["version"], said["added"]) == (config.version, "graph.onnx")
    assert config.graph is not None
    assert (config.graph.precision, set(config.graph.backends)) == ("float32", {"onnxruntime", "openvino"})
    model, before = load_bundle(bundle)[0].state_dict(), load_bundle(dense_bundle)[0].state_dict()
    assert all(torch.equal(model[key], before[key]) for key in before)
    line = f"bundle {bundle}: holds graph.onnx already; --force replaces it"
    assert refused("export", bundle, "--into") == line
    milkweed("export", bundle, "--into", "--force").ok()
    assert "either --onnx FILE or --into" in refused("export", bundle, "--into", "--onnx", tmp_path / "x", code=2)
