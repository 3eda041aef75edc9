"""Tests which tensor of a graph is its embedding, by small graphs and by what ONNX Runtime computes of them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from milkweed.models.bundle.graph import INPUT, OUTPUT
from milkweed.models.bundle.onnx_header import read_header
from milkweed.models.onnx.embedding import with_embedding
from milkweed.models.onnx.session import OnnxSession

WIDTH, CLASSES, SIDE = 6, 4, 2
node = helper.make_node
POOLED = node("Flatten", [INPUT], ["wide"]), node("MatMul", ["wide", "first"], ["pooled"])
QUANTISED = (
    node("QuantizeLinear", ["pooled", "scale", "zero"], ["pooled.q"]),
    node("DequantizeLinear", ["pooled.q", "scale", "zero"], ["rounded"]),
)
GRAPHS: dict[str, tuple[Any, ...]] = {
    "gemm": (*POOLED, node("Gemm", ["pooled", "head", "bias"], [OUTPUT])),
    "product and bias": (*POOLED, node("MatMul", ["pooled", "head"], ["sum"]), node("Add", ["bias", "sum"], [OUTPUT])),
    "quantised": (
        *POOLED,
        *QUANTISED,
        node("QuantizeLinear", ["head", "scale", "zero"], ["head.q"]),
        node("DequantizeLinear", ["head.q", "scale", "zero"], ["head.dq"]),
        node("Gemm", ["rounded", "head.dq", "bias"], [OUTPUT]),
    ),
}
NONE: dict[str, tuple[Any, ...]] = {
    "another number type": (
        *POOLED,
        node("Cast", ["pooled"], ["half"], to=TensorProto.DOUBLE),
        node("Cast", ["head"], ["head.half"], to=TensorProto.DOUBLE),
        node("MatMul", ["half", "head.half"], ["logits.half"]),
        node("Cast", ["logits.half"], [OUTPUT], to=TensorProto.FLOAT),
    ),
    "two heads": (
        *POOLED,
        node("Gemm", ["pooled", "head"], ["one"]),
        node("Gemm", ["pooled", "head"], ["other"]),
        node("Add", ["one", "other"], [OUTPUT]),
    ),
    "more behind it": (*POOLED, node("Gemm", ["pooled", "head"], ["raw"]), node("Softmax", ["raw"], [OUTPUT])),
    "no linear layer": (*POOLED, node("Slice", ["pooled", "from", "to", "axis"], [OUTPUT])),
    "weights that are computed": (
        *POOLED,
        node("MatMul", ["pooled", "head"], ["query"]),
        node("Transpose", ["query"], ["key"]),
        node("MatMul", ["key", "query"], ["square"]),
        node("MatMul", ["query", "square"], [OUTPUT]),
    ),
}


def graph_of(nodes: tuple[Any, ...]) -> bytes:
    random = np.random.default_rng(0)
    constants = {
        "first": random.normal(size=(3 * SIDE * SIDE, WIDTH)).astype(np.float32),
        "head": random.normal(size=(WIDTH, CLASSES)).astype(np.float32),
        "bias": random.normal(size=CLASSES).astype(np.float32),
        "scale": np.array(0.05, np.float32),
        "zero": np.array(0, np.int8),
        "from": np.array([0]),
        "to": np.array([CLASSES]),
        "axis": np.array([1]),
    }
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    content: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9
    ).SerializeToString()
    return content


@pytest.mark.parametrize("name", GRAPHS)
def test_it_is_what_the_last_linear_layer_reads(name: str) -> None:
    graph = graph_of(GRAPHS[name])
    images = np.random.default_rng(1).normal(size=(3, 3, SIDE, SIDE)).astype(np.float32)
    (first,) = (numpy_helper.to_array(each) for each in onnx.load_from_string(graph).graph.initializer[:1])
    embeds = with_embedding(graph)
    onnx.checker.check_model(onnx.load_from_string(embeds))
    rows = OnnxSession(embeds)(images)
    np.testing.assert_allclose(rows[:, :WIDTH], images.reshape(3, -1) @ first, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(rows[:, WIDTH:], OnnxSession(graph)(images))


@pytest.mark.parametrize("name", NONE)
def test_no_other_graph_has_one(name: str) -> None:
    graph = graph_of(NONE[name])
    OnnxSession(graph)(np.zeros((4, 3, SIDE, SIDE), np.float32))
    assert with_embedding(graph) is graph


def test_a_graph_may_be_deep() -> None:
    names = ["pooled", *(f"deep.{place}" for place in range(3000)), "deepest"]
    chain = [node("Identity", [a], [b]) for a, b in pairwise(names)]
    head = node("Gemm", ["activated", "head"], [OUTPUT])
    embeds = with_embedding(graph_of((*POOLED, *chain, node("Relu", ["deepest"], ["activated"]), head)))
    assert onnx.load_from_string(embeds).graph.output[1].name == "activated"


def test_nodes_and_constants_are_read() -> None:
    header = read_header(graph_of(GRAPHS["gemm"]))
    assert [(each.operator, each.inputs, each.outputs) for each in header.nodes] == [
        ("Flatten", (INPUT,), ("wide",)),
        ("MatMul", ("wide", "first"), ("pooled",)),
        ("Gemm", ("pooled", "head", "bias"), (OUTPUT,)),
    ]
    assert header.constants >= {"first", "head", "bias"}


def test_weights_in_another_file_stay_there(tmp_path: Path) -> None:
    model = onnx.load_from_string(graph_of(GRAPHS["gemm"]))
    onnx.save_model(model, str(tmp_path / "a.onnx"), save_as_external_data=True, location="a.data", size_threshold=0)
    graph = (tmp_path / "a.onnx").read_bytes()
    assert with_embedding(graph) is graph
