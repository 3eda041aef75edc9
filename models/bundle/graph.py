"""Reads the graph of a bundle for a backend: the bytes that were hashed, checked against config.json.

A backend opens these bytes, not the file: what it computes is then what was checked, whatever becomes of the file.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ..errors import BundleError, quoted
from .config import BundleConfig
from .graph_record import GRAPH, GraphRecord
from .onnx_header import FLOAT, OnnxValue, read_header
from .reading import about, check_digest, naming, open_file, read_unnamed

INPUT, OUTPUT, BATCH = "images", "logits", "batch"
"""Names of the one input, the one output and the first axis of every graph."""


@dataclass(frozen=True)
class OnnxGraph:
    """The bytes of an ONNX file, and what config.json says about them."""

    data: bytes
    record: GraphRecord


def load_graph(path: str | Path, config: BundleConfig | None = None) -> tuple[OnnxGraph, BundleConfig]:
    """Read the graph of a bundle, and its config. No weights are read, and nothing of torch is built.

    Args:
        config: as in `load_bundle`.

    Raises:
        BundleError: as `load_bundle`; the bundle has no graph.
    """
    path = Path(path)
    with naming(path):
        config = config or read_unnamed(path)
        return read_graph(path, config), config


def read_graph(path: Path, config: BundleConfig) -> OnnxGraph:
    """Read and check the graph of the bundle of a config.

    Raises:
        BundleError: the graph is missing, is not the one that was hashed, or is not one of the config's model.
    """
    if config.graph is None:
        raise BundleError(f"holds no graph ({GRAPH})")
    with open_file(path / GRAPH) as file:
        data = file.read()
    check_digest(GRAPH, hashlib.sha256(data).hexdigest(), config)
    graph = OnnxGraph(data, config.graph)
    check_graph(graph, config)
    return graph


def check_graph(graph: OnnxGraph, config: BundleConfig) -> None:
    """Refuse a graph that a runtime cannot take, or whose images or classes are not the config's.

    Raises:
        BundleError: names the file, what it has and what it must have.
    """
    size = int(config.preprocess["size"])
    with about(GRAPH):
        header = read_header(graph.data)
        if header.external:
            raise BundleError("has values in another file: a graph must hold all of its own")
        foreign = sorted(set(header.opsets) - {"", "ai.onnx"})
        if foreign or header.functions:
            raise BundleError(
                f"uses operators that are not ONNX's own: {quoted(foreign[0] if foreign else 'functions')}"
            )
        opset = max(header.opsets.values(), default=0)
        if opset != graph.record.opset:
            raise BundleError(f"opset {opset}, the config says {graph.record.opset}")
        _check_value("input", header.inputs, INPUT, (None, 3, size, size))
        _check_value("output", header.outputs, OUTPUT, (None, config.num_classes))


def _check_value(kind: str, values: tuple[OnnxValue, ...], name: str, shape: tuple[int | None, ...]) -> None:
    expected = OnnxValue(name, FLOAT, shape)
    if values != (expected,):
        raise BundleError(f"{kind} {', '.join(map(_described, values)) or 'none'}: must be {_described(expected)}")


def _described(value: OnnxValue) -> str:
    axes = ", ".join("batch" if axis is None else str(axis) for axis in value.shape)
    dtype = "float32" if value.dtype == FLOAT else f"type {value.dtype}"
    return f"{quoted(value.name, 40)} {dtype} ({axes})"
