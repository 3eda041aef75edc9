"""A bundle may hold a graph, beside its weights or alone: it is hashed, checked and handed out as bytes."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from milkweed.models import BundleConfig, load_bundle, read_config, save_bundle
from milkweed.models.bundle.golden import TOLERANCES, check_golden
from milkweed.models.bundle.graph import OnnxGraph, load_graph
from milkweed.models.bundle.graph_record import GraphRecord
from milkweed.models.bundle.provenance import made_from
from milkweed.models.errors import BundleError

from .edits import edit_config, refuse

GOLDEN = {"index": [[0, 1], [2, 1]], "probability": [[0.5, 0.25], [0.75, 0.125]]}


def proto(size: int, classes: int, *, opset: int = 20, images: str = "images") -> onnx.ModelProto:
    """The mean of each image, once for every class."""
    x = helper.make_tensor_value_info(images, TensorProto.FLOAT, ["batch", 3, size, size])
    y = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1, classes], [1.0] * classes)
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("Flatten", [images], ["flat"]),
        helper.make_node("ReduceMean", ["flat", "axes"], ["mean"]),
        helper.make_node("MatMul", ["mean", "w"], ["logits"]),
    ]
    graph = helper.make_graph(nodes, "means", [x], [y], [weight, axes])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def graph_of(model: onnx.ModelProto, **changes: Any) -> OnnxGraph:
    record = GraphRecord(precision="int8", opset=20, backends=("onnxruntime",), golden=GOLDEN)
    return OnnxGraph(model.SerializeToString(), replace(record, **changes))


COUNTS = {"macs": 509264, "dense_values": 16479}
"""What a bundle that is saved says about the model of `tiny_bundle`."""


@pytest.fixture
def config(tiny_bundle: Path) -> BundleConfig:
    return read_config(tiny_bundle)


@pytest.fixture
def graph(config: BundleConfig) -> OnnxGraph:
    changes = {"quantisation": {"images": 64}, "counts": COUNTS}
    return graph_of(proto(int(config.preprocess["size"]), config.num_classes), **changes)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for bundles that are saved once, and copied for each test."""
    return tmp_path_factory.mktemp("saved")


@pytest.fixture
def both(saved: Path, tmp_path: Path, tiny_bundle: Path, graph: OnnxGraph) -> Path:
    if not (saved / "both").exists():
        model, config = load_bundle(tiny_bundle)
        save_bundle(saved / "both", model, config, graph=graph)
    return Path(shutil.copytree(saved / "both", tmp_path / "both"))


@pytest.fixture
def alone(saved: Path, tmp_path: Path, config: BundleConfig, graph: OnnxGraph) -> Path:
    if not (saved / "alone").exists():
        save_bundle(saved / "alone", None, config, graph=replace(graph, record=replace(graph.record, counts={})))
    return Path(shutil.copytree(saved / "alone", tmp_path / "alone"))


def replace_graph(bundle: Path, data: bytes) -> None:
    """Put another graph there, with its hash."""
    (bundle / "graph.onnx").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    edit_config(bundle, lambda document: document["files"].update({"graph.onnx": digest}))


def test_bundle_of_weights_and_graph_has_both(both: Path, graph: OnnxGraph, tiny_bundle: Path) -> None:
    model, config = load_bundle(both)
    wanted, plain = load_bundle(tiny_bundle)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in wanted.state_dict().items())
    assert load_graph(both) == (graph, config)
    assert config.golden == plain.golden  # the torch model's answers; the graph's are its own
    assert config.graph is not None
    assert config.graph.golden == GOLDEN
    assert not config.graph_only
    assert config.files["graph.onnx"] == hashlib.sha256(graph.data).hexdigest()
    assert config.version != plain.version
    assert config.bytes_on_disk == sum(each.stat().st_size for each in both.iterdir())


def test_config_names_the_graph(alone: Path) -> None:
    assert json.loads((alone / "config.json").read_text())["graph"] == {
        "file": "graph.onnx",
        "precision": "int8",
        "opset": 20,
        "backends": ["onnxruntime"],
        "quantisation": {"images": 64},
        "golden": GOLDEN,
        "counts": COUNTS,
    }


def test_bundle_of_a_graph_alone_has_no_weights_and_no_answers_of_torch(alone: Path, graph: OnnxGraph) -> None:
    assert {each.name for each in alone.iterdir()} == {"config.json", "labels.json", "graph.onnx"}
    found, config = load_graph(alone)
    assert found == graph
    assert config.graph_only
    assert config.golden == {}
    assert config.storage == {}
    refuse(alone, "holds a graph alone (graph.onnx), without the weights", "model.safetensors")


def test_bundle_without_a_graph_has_none_to_load(tiny_bundle: Path) -> None:
    refuse(tiny_bundle, "holds no graph (graph.onnx)", load=load_graph)
    assert "graph" not in json.loads((tiny_bundle / "config.json").read_text())


def test_changed_model_does_not_take_the_graph_over(tmp_path: Path, both: Path) -> None:
    model, config = load_bundle(both)
    saved = save_bundle(tmp_path / "next", model, made_from(config, "train", {}, 1.0))
    assert saved.graph is None
    assert set(saved.files) == {"labels.json", "model.safetensors"}


def test_bundle_of_a_graph_alone_is_replaced_as_any_other(alone: Path, config: BundleConfig, graph: OnnxGraph) -> None:
    with pytest.raises(BundleError, match="exists already"):
        save_bundle(alone, None, config, graph=graph)
    other = graph_of(proto(int(config.preprocess["size"]), config.num_classes), precision="float32")
    saved = save_bundle(alone, None, config, graph=other, overwrite=True)
    assert saved.graph is not None
    assert saved.graph.precision == "float32"


def test_nothing_to_save_is_refused(tmp_path: Path, config: BundleConfig) -> None:
    with pytest.raises(BundleError, match="neither weights nor a graph to save"):
        save_bundle(tmp_path / "none", None, config)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("load", [load_bundle, load_graph])
def test_changed_graph_is_refused(both: Path, load: Callable[[Path], object]) -> None:
    data = bytearray((both / "graph.onnx").read_bytes())
    data[-1] ^= 1
    (both / "graph.onnx").write_bytes(data)
    refuse(both, "graph.onnx: sha256 is ", "config.json says ", load=load)
    (both / "graph.onnx").unlink()
    refuse(both, "graph.onnx: no such file", load=load)


@pytest.mark.parametrize(
    ("size", "classes", "message"),
    [
        (48, None, "input 'images' float32 (batch, 3, 48, 48): must be 'images' float32 (batch, 3, {size}, {size})"),
        (None, 9, "output 'logits' float32 (batch, 9): must be 'logits' float32 (batch, {classes})"),
    ],
)
@pytest.mark.parametrize("load", [load_bundle, load_graph])
def test_graph_of_another_model_is_refused(
    both: Path,
    config: BundleConfig,
    load: Callable[[Path], object],
    size: int | None,
    classes: int | None,
    message: str,
) -> None:
    own = {"size": int(config.preprocess["size"]), "classes": config.num_classes}
    replace_graph(both, proto(size or own["size"], classes or own["classes"]).SerializeToString())
    refuse(both, "graph.onnx: " + message.format(**own), load=load)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.opset_import[0].__setattr__("version", 19), "graph.onnx: opset 19, the config says 20"),
        (
            lambda m: m.opset_import.append(helper.make_opsetid("own", 1)),
            "uses operators that are not ONNX's own: 'own'",
        ),
        (lambda m: m.graph.input[0].__setattr__("name", "x"), "input 'x' float32"),
        (lambda m: m.graph.ClearField("output"), "output none: must be 'logits'"),
        (lambda m: m.graph.input[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", 8), "(8, 3, "),
        (lambda m: m.graph.input[0].type.tensor_type.__setattr__("elem_type", 10), "input 'images' type 10 "),
        (
            lambda m: m.graph.initializer[0].__setattr__("data_location", TensorProto.EXTERNAL),
            "has values in another file",
        ),
        (lambda m: m.ClearField("graph"), "graph.onnx: not an ONNX model: it has no graph"),
    ],
)
def test_graph_that_a_runtime_must_not_see(alone: Path, change: Callable[[Any], object], message: str) -> None:
    model = onnx.load(str(alone / "graph.onnx"))
    change(model)
    replace_graph(alone, model.SerializeToString())
    refuse(alone, message, load=load_graph)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.update(opset=21), "graph: opset 21 is newer than the 20 this milkweed runs: update milkweed"),
        (lambda g: g.update(opset="20"), "graph: opset '20' must be a whole number"),
        (lambda g: g.update(file="../x"), "graph: file '../x' must be graph.onnx"),
        (lambda g: g.update(precision="int4"), "graph: precision 'int4' must be one of float32, bfloat16, int8"),
        (lambda g: g.update(backends=[]), "graph: backends [] must be some of onnxruntime, openvino"),
        (lambda g: g.update(backends="openvino"), "graph: backends 'openvino' must be some of"),
        (lambda g: g.update(evil=1), "graph: member 'evil' is unknown"),
        (lambda g: g.pop("golden"), "graph: member 'golden' is missing"),
        (lambda g: g.update(golden={}), "golden {} must have index and probability"),
        (lambda g: g.update(counts={"macs": 1}), "graph: counts must be whole numbers: macs, dense_values"),
        (lambda g: g["counts"].update(macs="1"), "graph: counts must be whole numbers"),
        (lambda g: g.update(quantisation=None), "graph: quantisation None must be an object"),
    ],
)
def test_wrong_records_are_refused(alone: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    edit_config(alone, lambda document: change(document["graph"]))
    refuse(alone, f"config.json: {message}", load=load_graph)
    refuse(alone, f"config.json: {message}", load=read_config)


def test_file_and_member_belong_together(alone: Path, both: Path) -> None:
    edit_config(both, lambda document: document.pop("graph"))
    refuse(both, "config.json: files: graph.onnx and member graph belong together", load=load_graph)
    edit_config(alone, lambda document: document["files"].pop("graph.onnx"))
    refuse(alone, "config.json: files: model.safetensors is missing", load=load_graph)


def test_a_quantised_graph_may_be_off_by_a_factor_of_two(alone: Path) -> None:
    """0.7 is just above the logarithm of two; float32 would refuse a fortieth."""
    assert TOLERANCES["int8"] == 0.7
    golden = read_config(alone).graph
    assert golden is not None
    answers = torch.tensor([[0.5, 0.25, 0.1], [0.1, 0.125, 0.75]])
    check_golden(golden.golden, answers * 1.99, "int8")
    check_golden(golden.golden, answers / 1.99, "int8")
    with pytest.raises(BundleError, match="golden image 0, class 0"):
        check_golden(golden.golden, answers / 2.1, "int8")
