"""The header of an ONNX file is read as the package `onnx` reads it, and bytes that are none are refused."""

from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from milkweed.models.bundle.onnx_header import OnnxValue, read_header


def small_model(**changes: Any) -> onnx.ModelProto:
    """y = x * w, with x of any batch."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 200])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["batch", 3, 200])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [200], [0.5] * 200)
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "small", [x], [y], [weight])
    return helper.make_model(graph, **{"opset_imports": [helper.make_opsetid("", 20)], **changes})


def make_external(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="elsewhere.bin")


def test_header_is_what_onnx_wrote() -> None:
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    header = read_header(small_model(opset_imports=domains).SerializeToString())
    assert header.opsets == {"": 17, "com.microsoft": 1}
    assert header.inputs == (OnnxValue("x", TensorProto.FLOAT, (None, 3, 200)),)
    assert header.outputs == (OnnxValue("y", TensorProto.FLOAT16, (None, 3, 200)),)
    assert header.functions == 0
    [weight] = small_model().graph.initializer
    assert header.weight_bytes == weight.ByteSize() > 200 * 4
    assert not header.external


def test_tensors_in_other_files_are_found_wherever_they_are() -> None:
    weight = small_model()
    make_external(weight.graph.initializer[0])
    assert read_header(weight.SerializeToString()).external

    inner = helper.make_graph([], "inner", [], [], [helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])])
    make_external(inner.initializer[0])
    branched = small_model()
    branched.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner))
    assert read_header(branched.SerializeToString()).external

    constant = small_model()
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])
    make_external(value)
    constant.graph.node.append(helper.make_node("Constant", [], ["k"], value=value))
    assert read_header(constant.SerializeToString()).external


def test_functions_of_its_own_are_counted() -> None:
    model = small_model()
    model.functions.append(helper.make_function("own", "F", ["a"], ["b"], [], [helper.make_opsetid("", 20)]))
    assert read_header(model.SerializeToString()).functions == 1


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"PK\x03\x04 not onnx", b"\x3a\xff\xff\xff\xff\x0f", b"\x0b"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an ONNX model: "):
        read_header(data)


def test_every_truncation_is_refused() -> None:
    data = small_model().SerializeToString()
    opset_bytes = (
        len(helper.make_opsetid("", 20).SerializeToString()) + 2
    )  # the last field: without it the rest is whole
    for length in range(len(data) - opset_bytes):
        with pytest.raises(ValueError, match="not an ONNX model: "):
            read_header(data[:length])


def test_graphs_inside_graphs_end_somewhere() -> None:
    inner = helper.make_graph([], "inner", [], [])
    for _ in range(12):
        inner = helper.make_graph([helper.make_node("If", ["c"], ["z"], then_branch=inner)], "outer", [], [])
    model = helper.make_model(inner)
    with pytest.raises(ValueError, match="graphs inside graphs"):
        read_header(model.SerializeToString())
