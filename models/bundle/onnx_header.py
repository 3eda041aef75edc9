"""Reads what an ONNX file takes and gives, its opset and what it refers to, without the package `onnx`.

A server that computes a graph needs no more than a runtime, and must refuse a wrong file before the runtime sees it.
The field numbers are those of onnx.proto; the wire format is that of Protocol Buffers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

FLOAT = 1
"""TensorProto's number of float32."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_DEPTH = 16

# Fields of a message that hold messages with tensors inside, as onnx.proto numbers them.
_GRAPH, _NODE, _ATTRIBUTE, _TENSOR, _SPARSE = "graph", "node", "attribute", "tensor", "sparse tensor"
_INSIDE = {
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
    _TENSOR: {},
}
_DATA_LOCATION = 14


@dataclass(frozen=True)
class OnnxValue:
    """An input or output of a graph; an axis of any length is None."""

    name: str
    dtype: int
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class OnnxNode:
    """An operator of a graph, and the names of what it reads and makes."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class OnnxHeader:
    """What a runtime has to know of a file.

    Args:
        opsets: version by domain; ONNX's own domain is "".
        inputs, outputs: those of the graph.
        functions: number of operators that the file defines itself.
        weight_bytes: of the graph's constants, with their names and shapes.
        external: whether the values of a tensor lie in another file.
        nodes: the graph's, in order.
        constants: names of its constants.
    """

    opsets: dict[str, int]
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]
    functions: int
    weight_bytes: int
    external: bool
    nodes: tuple[OnnxNode, ...]
    constants: frozenset[str]


def read_header(data: bytes) -> OnnxHeader:
    """Read the bytes of an ONNX file.

    Raises:
        ValueError: they are no ONNX model; one line.
    """
    try:
        model = list(_fields(memoryview(data)))
        graphs = _all(model, 7)
        if len(graphs) != 1:
            raise ValueError("it has no graph")
        graph = list(_fields(graphs[0]))
        opsets = [list(_fields(opset)) for opset in _all(model, 8)]
        return OnnxHeader(
            opsets={_text(opset, 1): _number(opset, 2) or 0 for opset in opsets},
            inputs=tuple(map(_value, _all(graph, 11))),
            outputs=tuple(map(_value, _all(graph, 12))),
            functions=len(_all(model, 25)),
            weight_bytes=sum(map(len, _all(graph, 5))),
            external=_is_external(_GRAPH, graphs[0]),
            nodes=tuple(map(_node, _all(graph, 1))),
            constants=frozenset(_text(list(_fields(tensor)), 8) for tensor in _all(graph, 5)),
        )
    except (ValueError, IndexError) as error:
        raise ValueError(f"not an ONNX model: {error}") from None


_Field = tuple[int, int | memoryview]


def _fields(data: memoryview) -> Iterator[_Field]:
    """The fields of a message: number and value, a whole number or the bytes of all else."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _varint(data, position)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"field {number} is of unknown kind {kind}")
        if position + length > len(data):
            raise ValueError(f"truncated: field {number} ends {position + length - len(data)} bytes behind the end")
        yield number, data[position : position + length]
        position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("truncated")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number of more than ten bytes")


def _all(message: list[_Field], number: int) -> list[memoryview]:
    return [value for field, value in message if field == number and isinstance(value, memoryview)]


def _number(message: list[_Field], number: int) -> int | None:
    return next((value for field, value in message if field == number and isinstance(value, int)), None)


def _text(message: list[_Field], number: int) -> str:
    return next((bytes(value).decode("utf-8", "replace") for value in _all(message, number)), "")


def _value(data: memoryview) -> OnnxValue:
    """A ValueInfoProto: name, type.tensor_type.elem_type, type.tensor_type.shape.dim[].dim_value."""
    message = list(_fields(data))
    tensor = [field for kind in _all(message, 2) for part in _all(list(_fields(kind)), 1) for field in _fields(part)]
    axes = [axis for shape in _all(tensor, 2) for axis in _all(list(_fields(shape)), 1)]
    return OnnxValue(
        _text(message, 1), _number(tensor, 1) or 0, tuple(_number(list(_fields(axis)), 1) for axis in axes)
    )


def _node(data: memoryview) -> OnnxNode:
    message = list(_fields(data))
    inputs, outputs = (tuple(bytes(name).decode("utf-8", "replace") for name in _all(message, n)) for n in (1, 2))
    return OnnxNode(_text(message, 4), inputs, outputs)


def _is_external(kind: str, data: memoryview, depth: int = 0) -> bool:
    """Whether a tensor anywhere inside a message has its values in another file."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"graphs inside graphs more than {_MAX_DEPTH} messages deep")
    inside = _INSIDE[kind]
    for number, value in _fields(data):
        if kind == _TENSOR and number == _DATA_LOCATION and value != 0:
            return True
        if number in inside and isinstance(value, memoryview) and _is_external(inside[number], value, depth + 1):
            return True
    return False
