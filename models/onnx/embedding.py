"""Makes what a graph's classifier reads, the embedding, a second output of the graph. Files stay as they are."""

from ..bundle.onnx_header import FLOAT, OnnxNode, read_header

_SAME_VALUES = ("Identity", "QuantizeLinear", "DequantizeLinear")
"""Operators that leave values as they are, but for rounding. Near a Cast the embedding need not be float32."""


def with_embedding(graph: bytes) -> bytes:
    """Add the embedding to the outputs of a graph, behind its logits.

    It is what the last linear layer reads (timm's `forward_head(pre_logits=True)`); of a quantised graph, before that
    is rounded. A message of Protocol Buffers that stands in a file twice is one, its lists joined: so the output is
    added by bytes behind the graph's.

    Returns:
        The bytes as they are, where the logits are not what one linear layer gives, or weights lie in another file.

    Raises:
        ValueError: these are not the bytes of an ONNX model.
    """
    name = _embedding_name(graph)
    if name is None:
        return graph
    of_two_axes = _message(2, _message(1, b"") * 2)
    of_floats = _message(2, _message(1, bytes((1 << 3, FLOAT)) + of_two_axes))
    return graph + _message(7, _message(12, _message(1, name.encode()) + of_floats))


def _embedding_name(graph: bytes) -> str | None:
    """Name the tensor that the classifier reads; None where no linear layer is the last thing that a graph does."""
    header = read_header(graph)
    if header.external:
        return None
    producers = {name: node for node in header.nodes for name in node.outputs}

    constants = {"", *header.constants}  # an input that is left out has no name
    for node in header.nodes:
        if constants.issuperset(node.inputs):
            constants.update(node.outputs)

    def before(node: OnnxNode) -> str:
        """The one input that is no constant; empty where there are several."""
        varying = [name for name in node.inputs if name not in constants]
        return varying[0] if len(varying) == 1 else ""

    layer = producers.get(header.outputs[0].name)
    while layer is not None and layer.operator in ("Add", *_SAME_VALUES):  # the bias
        layer = producers.get(before(layer))
    if layer is None or layer.operator not in ("Gemm", "MatMul") or before(layer) != layer.inputs[0]:
        return None
    name = layer.inputs[0]
    while name in producers and producers[name].operator in _SAME_VALUES:
        name = before(producers[name])
    return name or None


def _message(number: int, value: bytes) -> bytes:
    """A field of bytes, as Protocol Buffers write it."""
    return bytes((number << 3 | 2,)) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    low = number & 0x7F
    return bytes((low,)) if number < 0x80 else bytes((low | 0x80,)) + _varint(number >> 7)
