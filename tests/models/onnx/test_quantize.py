"""Graphs are quantised with the scales that a few images give, layers may stay float, and the result is a bundle's."""

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from milkweed.models import ExportError
from milkweed.models.bundle.golden import golden_images
from milkweed.models.bundle.graph import OnnxGraph
from milkweed.models.onnx import quantize as quantize_module
from milkweed.models.onnx.quantize import (
    QuantizeSettings,
    int8_instructions,
    quantized_graph,
)
from milkweed.models.onnx.quantize_process import BATCH_SIZE, kept_nodes
from milkweed.models.onnx.session import OnnxSession

from .onnx_case import float_inputs, proto_of

# Importing either would start its telemetry, so they are looked for and not imported.
pytestmark = pytest.mark.skipif(not (find_spec("nncf") and find_spec("openvino")), reason="needs milkweed[quantize]")

SIZE = 4


@pytest.fixture(scope="module")
def images() -> Tensor:
    """37 images, in four whole batches and one of five; one pixel has outliers."""
    made = torch.randn(37, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1)) + 0.5
    made[:, 0, 0, 0] *= 50
    return made


@pytest.fixture(scope="module")
def weights() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(48, 5, generator=generator).numpy(), torch.randn(5, 7, generator=generator).numpy()


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory, weights: tuple[Any, Any]) -> Path:
    """The graph relu(images @ w) @ v, its nodes named as an export names them."""
    x = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])
    y = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 7])
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"], name="/flatten"),
        helper.make_node("MatMul", ["flat", "w"], ["a"], name="mlp.fc1/MatMul"),
        helper.make_node("Relu", ["a"], ["h"], name="mlp/Relu"),
        helper.make_node("MatMul", ["h", "v"], ["logits"], name="mlp.fc2/MatMul"),
    ]
    values = [numpy_helper.from_array(value, name) for name, value in zip("wv", weights, strict=True)]
    graph = helper.make_graph(nodes, "mlp", [x], [y], values)
    file = tmp_path_factory.mktemp("mlp") / "mlp.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), str(file))
    return file


@pytest.fixture(scope="module")
def quantised(mlp: Path, images: Tensor) -> OnnxGraph:
    return quantized_graph(mlp, images)


def values_of(graph: OnnxGraph) -> dict[str, Any]:
    return {each.name: numpy_helper.to_array(each) for each in proto_of(graph).graph.initializer}


def test_weights_have_a_scale_for_each_output(quantised: OnnxGraph, weights: tuple[Any, Any]) -> None:
    found = values_of(quantised)
    for name, weight in zip("wv", weights, strict=True):
        scale = numpy.abs(weight).max(0) / 127
        assert numpy.allclose(found[f"scale_{name}_1"], scale, rtol=1e-6)
        assert found[f"q_output_{name}_1"].dtype == numpy.int8
        assert numpy.array_equal(found[f"q_output_{name}_1"], numpy.round(weight / scale))
        assert not found[f"zero_point_{name}_1"].any()


def test_activations_have_the_mean_range_of_the_batches(
    quantised: OnnxGraph, images: Tensor, weights: tuple[Any, Any]
) -> None:
    found, batches = values_of(quantised), images.split(BATCH_SIZE)
    low, high = (numpy.mean([float(each(batch)) for batch in batches]) for each in (torch.min, torch.max))
    zero = round(-low * 255 / (high - low))
    scale = max(high / (255 - zero), -low / zero)  # the wider of both sides, once zero lies on a level
    assert found["scale_images_1"] == pytest.approx(scale, rel=1e-5)
    assert found["zero_point_images_1"] == zero - 128

    hidden = [(batch.flatten(1) @ torch.from_numpy(weights[0])).relu() for batch in batches]
    # What is never below zero takes all 256 levels for what is above.
    assert found["scale_h_1"] == pytest.approx(numpy.mean([float(each.max()) for each in hidden]) / 255, rel=0.03)
    assert found["zero_point_h_1"] == 0
    assert found["zero_point_h_1"].dtype == numpy.uint8


@pytest.mark.slow
def test_symmetric_activations_have_no_zero_points(mlp: Path, images: Tensor, quantised: OnnxGraph) -> None:
    found = values_of(quantized_graph(mlp, images, QuantizeSettings(symmetric=True)))
    assert values_of(quantised)["zero_point_images_1"]
    assert not any(found[name].any() for name in found if name.startswith("zero_point"))
    high = numpy.mean([float(batch.abs().max()) for batch in images.split(BATCH_SIZE)])
    assert found["scale_images_1"] == pytest.approx(high / 127, rel=0.01)


def test_record_says_how_it_was_made(quantised: OnnxGraph) -> None:
    record = quantised.record
    assert record.precision == "int8"
    assert record.opset == 20
    assert record.backends == ("onnxruntime", "openvino")
    versions = record.quantisation["versions"]
    assert set(versions) == {"nncf", "onnxruntime", "openvino"}
    assert {**record.quantisation, "versions": {}} == {
        "method": "NNCF",
        "smooth_quant": None,
        "symmetric": False,
        "keep_float": [],
        "images": 37,
        "versions": {},
    }
    answer = OnnxSession(quantised.data)(torch.from_numpy(golden_images(SIZE))).softmax(-1)
    best = answer.topk(5)
    assert record.golden["index"] == best.indices.tolist()
    assert torch.allclose(torch.tensor(record.golden["probability"]), best.values, rtol=1e-6)


@pytest.mark.slow
def test_same_graph_and_images_give_the_same_bytes(mlp: Path, images: Tensor, quantised: OnnxGraph) -> None:
    assert quantized_graph(mlp, images) == quantised


def test_graph_says_nothing_of_the_machine(quantised: OnnxGraph, tmp_path: Path) -> None:
    proto = proto_of(quantised)
    assert proto.producer_name == "milkweed"
    assert not proto.metadata_props
    assert str(Path.home()).encode() not in quantised.data
    assert sys.prefix.encode() not in quantised.data


@pytest.mark.slow
def test_kept_layers_stay_float(mlp: Path, images: Tensor, quantised: OnnxGraph, weights: tuple[Any, Any]) -> None:
    assert float_inputs(quantised) == {"mlp.fc1/MatMul": False, "mlp.fc2/MatMul": False}
    kept = quantized_graph(mlp, images, QuantizeSettings(keep_float=("*.fc1",)))
    assert float_inputs(kept) == {"mlp.fc1/MatMul": True, "mlp.fc2/MatMul": False}
    assert numpy.array_equal(values_of(kept)["w"], weights[0])
    assert "scale_images_1" not in values_of(kept)


def test_a_module_includes_the_layers_inside(mlp: Path) -> None:
    model = onnx.load(str(mlp))
    inside = ["mlp.fc1/MatMul", "mlp/Relu", "mlp.fc2/MatMul"]
    assert kept_nodes(model, ["mlp"]) == inside
    assert kept_nodes(model, ["mlp.fc2", "mlp.fc?"]) == ["mlp.fc2/MatMul", "mlp.fc1/MatMul"]
    with pytest.raises(ValueError, match=r"layers to keep in float: 'mlp\.fc' is no layer of the graph"):
        kept_nodes(model, ["mlp.fc1", "mlp.fc"])


@pytest.mark.slow
def test_smooth_quant_moves_outliers_of_activations_into_the_weights(
    mlp: Path, images: Tensor, quantised: OnnxGraph
) -> None:
    """With it, the weights are no longer those of the model: NNCF multiplies them and divides the activations."""
    smooth = quantized_graph(mlp, images, QuantizeSettings(smooth_quant=0.5))
    assert smooth.record.quantisation["smooth_quant"] == 0.5
    assert [node.op_type for node in proto_of(quantised).graph.node].count("Mul") == 0
    assert [node.op_type for node in proto_of(smooth).graph.node].count("Mul") > 0
    reference = OnnxSession(mlp)(images)

    def error(graph: OnnxGraph) -> float:
        return float((OnnxSession(graph.data)(images) - reference).square().mean())

    assert error(smooth) < error(quantised)


def test_images_that_teach_nothing_are_refused(mlp: Path, images: Tensor) -> None:
    for bad, message in (
        (images[:31], "31 images: quantisation needs at least 32"),
        (images[:1].expand(64, -1, -1, -1), "of 64 images 1 differ from each other and are not of one colour: "),
        (torch.rand(64, 3, 1, 1).expand(-1, -1, SIZE, SIZE), "of 64 images 0 differ from each other"),
        (images[:, :, :, :3], r"images of shape \(3, 4, 3\): the graph takes \(3, 4, 4\)"),
        (images / 0, "images hold numbers that are not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            quantized_graph(mlp, bad)


def test_settings_outside_their_range_are_refused() -> None:
    for alpha in (-1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="must be between 0 and 1, or None"):
            QuantizeSettings(smooth_quant=alpha)
    with pytest.raises(ValueError, match="12 images: quantisation needs at least 32"):
        QuantizeSettings(images=12)


def test_what_the_process_refuses_is_one_line(mlp: Path, images: Tensor, quantised: OnnxGraph, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"^layers to keep in float: 'head' is no layer of the graph$"):
        quantized_graph(mlp, images, QuantizeSettings(keep_float=("head",)))
    (tmp_path / "int8.onnx").write_bytes(quantised.data)
    with pytest.raises(ExportError, match=r"^the graph is quantised already$"):
        quantized_graph(tmp_path / "int8.onnx", images)


def test_missing_packages_are_named_with_their_extra(
    mlp: Path, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        quantize_module, "find_spec", lambda name: None if name in ("nncf", "openvino") else find_spec(name)
    )
    with pytest.raises(ImportError, match=r"needs nncf, openvino: .*onnx,quantize"):
        quantized_graph(mlp, images)


def test_nothing_is_sent_and_nothing_is_written_home(mlp: Path, images: Tensor, tmp_path: Path) -> None:
    """NNCF, OpenVINO and ONNX Runtime would do both. The hook sees what Python connects to, the folder what is kept."""
    home, hooks, log = tmp_path / "home", tmp_path / "hooks", tmp_path / "log"
    for folder in (home, hooks):
        folder.mkdir()
    log.touch()
    (hooks / "sitecustomize.py").write_text(
        textwrap.dedent(f"""
        import os, sys

        def seen(event, arguments):
            if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.gethostbyname"):
                os.write(log, (event + " " + str(arguments) + "\\n").encode())
                raise OSError("no network in this test")

        log = os.open({str(log)!r}, os.O_WRONLY | os.O_APPEND)
        sys.addaudithook(seen)
        """)
    )
    path = os.pathsep.join([str(hooks), os.environ.get("PYTHONPATH", "")])
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith(("CI", "XDG", "NNCF", "PYTEST"))
    }
    environment = {**outside, "HOME": str(home), "PYTHONPATH": path}
    numpy.save(tmp_path / "images.npy", images.numpy())

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-P", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)

    out = tmp_path / "out.onnx"
    done = run(
        *("-m", "milkweed.models.onnx.quantize_process", str(mlp), str(tmp_path / "images.npy"), str(out)),
        '{"smooth_quant": null, "keep_float": [], "symmetric": false}',
    )
    assert done.returncode == 0, done.stderr
    assert out.is_file()
    assert log.read_text() == ""
    assert list(home.iterdir()) == []
    assert run("-c", "import socket; socket.create_connection(('127.0.0.1', 9))").returncode != 0
    assert "socket." in log.read_text()  # the hook sees what is tried


def test_cpu_tells_what_it_multiplies_int8_with(monkeypatch: pytest.MonkeyPatch) -> None:
    for features, name in (
        ({"avx512_vnni": True, "avx_vnni": True}, "avx512_vnni"),
        ({"avx_vnni": True, "avx512_vnni": False}, "avx_vnni"),
        ({"avx2": True, "avx512_f": True}, None),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda features=features: features)
        assert int8_instructions() == name
