"""Tests the commands with bundles that hold a graph of their own, beside their weights or alone."""

from pathlib import Path

import pytest

import milkweed as sdk
from milkweed.cli.doctor.plan import plan_findings
from milkweed.inference import backend
from milkweed.models import read_config
from milkweed.models.bundle.graph import OnnxGraph
from milkweed.models.bundle.onnx_header import read_header
from milkweed.server.config.settings import Settings
from milkweed.server.config.sources import origins

from ..support.command import Milkweed, Refused


def test_inspect_shows_what_config_and_graph_say(
    milkweed: Milkweed, graph_alone: Path, graph_and_weights: Path, colour_bundle: Path, colour_graph: OnnxGraph
) -> None:
    alone, both, plain = (
        milkweed("inspect", each, "--json").ok(quiet=True).document
        for each in (graph_alone, graph_and_weights, colour_bundle)
    )
    counts = {"macs": both["macs"]["per_image"], "dense_values": both["parameters"]["dense_equivalent"]}
    assert alone["graph"] == both["graph"] == {**colour_graph.record.to_dict(), "counts": counts}
    assert plain["graph"] is None
    for counted in ("layers", "parameters", "macs"):
        assert alone[counted] == both[counted] == plain[counted]
    assert alone["bytes"]["dense_equivalent"] == plain["bytes"]["dense_equivalent"]
    assert alone["bytes"]["resident"] == read_header(colour_graph.data).weight_bytes < plain["bytes"]["resident"]
    text = milkweed("inspect", graph_alone).ok(quiet=True).out
    assert "\nweights        none\ngraph          int8, for onnxruntime and openvino\n" in text
    assert "(int8 graph), on disk" in text
    text = milkweed("inspect", graph_and_weights).out
    assert "\nweights        float32 on disk\ngraph          int8, for onnxruntime and openvino\n" in text
    assert "(float32), on disk" in text


@pytest.mark.slow
def test_doctor_tells_what_would_compute_a_graph(
    graph_alone: Path, graph_and_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(bundle: Path, **given: str) -> dict[str, tuple[str, str]]:
        settings = Settings(port=0, metrics_port=0, device="cpu", **given)
        return {each.name: (each.status, each.text) for each in plan_findings(settings, origins(given), bundle)}

    found = plan(graph_alone)
    assert "dense, int8 graph alone, " in found["model"][1]
    assert found["backend"][0] == "ok"
    assert found["backend"][1].startswith("ONNX Runtime ")
    assert "whichever is fastest when the model loads: backend = default (default)" in found["backend"][1]
    names = [backend.runtime_name("onnxruntime"), backend.runtime_name("openvino")]
    assert found["kernels"] == ("ok", " or ".join(names))
    assert "recorded" not in found["forward"][1]
    assert plan(graph_alone, backend="torch")["backend"][0] == "broken"
    assert "int8 graph beside its weights" in plan(graph_and_weights)["model"][1]
    assert plan(graph_and_weights, backend="torch")["kernels"][1] == "PyTorch's: the model has no structured layer"
    monkeypatch.setattr(backend, "runtime_version", lambda package: None)
    assert plan(graph_and_weights)["backend"][1].startswith("PyTorch: backend = default (default); ONNX Runtime is not")
    assert plan(graph_alone)["backend"][0] == "broken"


def test_evaluate_computes_the_graph_and_records_it(
    milkweed: Milkweed, graph_alone: Path, colour_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILKWEED_BACKEND", "openvino")
    found = milkweed("evaluate", graph_alone, colour_photos, "--device", "cpu", "--json").ok(quiet=True).document
    assert (found["engine"], found["graph"], found["images"]) == ("openvino", "int8 graph", 36)
    assert found["version"] == read_config(graph_alone).version


def test_a_graph_alone_answers_in_this_process(graph_alone: Path, colour_photos: Path) -> None:
    photo = next(colour_photos.rglob("*.png"))
    with sdk.load(graph_alone, device="cpu") as model:
        answer = model.classify(photo)
    assert answer.error is None
    assert len(answer.predictions) == 3
    assert sum(each.score for each in answer.predictions) == pytest.approx(1)


@pytest.mark.parametrize(
    "command",
    [
        ("export", "{bundle}", "--onnx", "{out}"),
        ("convert", "{bundle}", "{out}", "--storage", "int8"),
        ("densify", "{bundle}", "{out}"),
        ("compress", "{bundle}", "{out}", "--images", "{photos}"),
    ],
    ids=lambda command: command[0],
)
def test_what_needs_weights_refuses_a_graph_alone_in_a_line(
    command: tuple[str, ...], refused: Refused, graph_alone: Path, colour_photos: Path, tmp_path: Path
) -> None:
    places = {"bundle": graph_alone, "out": tmp_path / "out", "photos": colour_photos}
    line = refused(*(each.format(**places) for each in command))
    assert "holds a graph alone (graph.onnx), without the weights that this needs (model.safetensors)" in line
    assert not (tmp_path / "out").exists()
