"""Bundles whose hashes are right, or are not, and that nobody should serve; each is to cost one line."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from milkweed.kernels.cpu.factors import convolution, dense
from milkweed.kernels.cpu.program import Attention, Embed, Grid, Head, Merge, Program, Pyramid
from milkweed.kernels.cpu.row_operators import Norm
from milkweed.models.programs.file import stored

DEMO = Path(str(files("milkweed.models") / "demo"))
CLASSES, WIDTH = 10, 16
GOLDEN = {"index": [[0], [0]], "probability": [[0.5], [0.5]]}


def endless_graph() -> bytes:
    """A loop of 2^62 turns."""
    from onnx import TensorProto as T
    from onnx import helper as h
    from onnx import numpy_helper as n

    values = h.make_tensor_value_info
    body = h.make_graph(
        [h.make_node("Identity", ["go"], ["on"]), h.make_node("Identity", ["x"], ["z"])],
        "body",
        [values("turn", T.INT64, []), values("go", T.BOOL, []), values("x", T.FLOAT, None)],
        [values("on", T.BOOL, []), values("z", T.FLOAT, None)],
    )
    turns = [n.from_array(np.array(2**62, np.int64), "turns"), n.from_array(np.array(True), "first")]
    return _graph([h.make_node("Loop", ["turns", "first", "y"], ["logits"], body=body)], turns)


def huge_graph() -> bytes:
    """A tensor of 400 GiB."""
    from onnx import helper as h
    from onnx import numpy_helper as n

    nodes = [
        h.make_node("ConstantOfShape", ["shape"], ["z"]),
        h.make_node("ReduceMean", ["z"], ["mean"], axes=[0], keepdims=0),
        h.make_node("Add", ["y", "mean"], ["logits"]),
    ]
    return _graph(nodes, [n.from_array(np.array([100 << 30], np.int64), "shape")])


def wrong_graph() -> bytes:
    """A sound graph, which answers otherwise than the bundle says."""
    from onnx import helper as h

    return _graph([h.make_node("Identity", ["y"], ["logits"])], [])


def _graph(nodes: list[Any], values: list[Any]) -> bytes:
    from onnx import TensorProto as T
    from onnx import helper as h
    from onnx import numpy_helper as n

    first = [
        h.make_node("ReduceMean", ["images"], ["m"], axes=[1, 2, 3], keepdims=1),
        h.make_node("Reshape", ["m", "column"], ["r"]),
        h.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    values = [
        n.from_array(np.array([-1, 1], np.int64), "column"),
        n.from_array(np.ones((1, CLASSES), np.float32), "w"),
        *values,
    ]
    images = h.make_tensor_value_info("images", T.FLOAT, ["batch", 3, 8, 8])
    logits = h.make_tensor_value_info("logits", T.FLOAT, ["batch", CLASSES])
    graph = h.make_graph([*first, *nodes], "graph", [images], [logits], values)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)])
    model.ir_version = 8
    data: bytes = model.SerializeToString()
    return data


def put_graph_bundle(out: Path, data: bytes) -> None:
    """Write a bundle of a graph alone."""
    graph = {"file": "graph.onnx", "precision": "float32", "opset": 17, "backends": ["onnxruntime"]}
    counts = {"macs": 1000, "dense_values": 1000}
    _put(out, 8, {"graph.onnx": data}, graph={**graph, "quantisation": {}, "golden": GOLDEN, "counts": counts})


def put_program_bundle(out: Path, program: Program | None, size: int, data: bytes = b"") -> None:
    """Write a bundle for our CPU kernels."""
    weights = (8).to_bytes(8, "little") + b"{}      "
    parts = {"model.safetensors": weights, "program.safetensors": data or stored(program)}
    record = {"precision": "bfloat16", "golden": GOLDEN, "counts": {"macs": 1000, "dense_values": 1000}}
    _put(out, size, parts, program=record)


def _put(out: Path, size: int, parts: dict[str, bytes], **records: Any) -> None:
    labels = [{"id": str(i), "label": f"class {i}"} for i in range(CLASSES)]
    parts = {"labels.json": json.dumps(labels).encode(), **parts}
    config = {
        "format": 1,
        "arch": "deit_tiny_patch16_224",
        "arch_args": {"num_classes": CLASSES},
        "structure": {},
        "preprocess": {
            "size": size,
            "crop_pct": 1.0,
            "interpolation": "bicubic",
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
        },
        "provenance": {},
        "metrics": {},
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()},
        **records,
    }
    out.mkdir(parents=True)
    for name, data in parts.items():
        (out / name).write_bytes(data)
    (out / "config.json").write_text(json.dumps(config))


def program(size: int, *more: Any, heads: int = 1, keys: float = 0.0) -> Program:
    """A ViT of one block for images of `size` px in patches of 4, with more operators.

    Args:
        keys: the weights of its keys; 0: small random ones.
    """
    random = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return (random.standard_normal(shape) * 0.1).astype(np.float32)

    inner = heads * WIDTH
    norms = [Norm(np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32), 1e-6) for _ in range(2)]
    qkv = weights(3 * inner, WIDTH)
    if keys:
        qkv[inner : 2 * inner] = keys
    attention = [norms[0], dense(qkv, None, name="qkv"), Attention(heads, WIDTH)]
    attention.append(dense(weights(WIDTH, inner), None, adds=True, name="proj"))
    embed = Embed(weights(WIDTH, 3, 4, 4), weights(WIDTH), weights((size // 4) ** 2, WIDTH), size)
    return Program(embed, [*attention, *more], Head(norms[1], dense(weights(CLASSES, WIDTH), None, name="head")))


def pyramid(padding: int, stride: int) -> list[Any]:
    """A convolution over the grid of the tokens, which makes it larger."""
    kernel = np.full((WIDTH, WIDTH, 1, 1), 0.1, np.float32)
    return [Grid(0), Pyramid([convolution(kernel, None, stride, padding=padding, name="p")])]


def of_demo(change: Callable[[Path], object]) -> Callable[[Path], None]:
    """Write the demo's bundle, changed."""

    def put(out: Path) -> None:
        shutil.copytree(DEMO, out)
        change(out)

    return put


def rehashed(out: Path, name: str, data: bytes) -> None:
    """Exchange a file of a bundle, and its hash."""
    (out / name).write_bytes(data)
    config = json.loads((out / "config.json").read_text())
    config["files"][name] = hashlib.sha256(data).hexdigest()
    (out / "config.json").write_text(json.dumps(config))


def cut(name: str) -> Callable[[Path], None]:
    """Half of a file, under its hash."""

    def change(out: Path) -> None:
        data = (out / name).read_bytes()
        rehashed(out, name, data[: len(data) // 2])

    return of_demo(change)


def sparse(out: Path) -> None:
    """A graph of a tebibyte of zeros, which takes no room."""
    put_graph_bundle(out, b"")
    os.truncate(out / "graph.onnx", 1 << 40)


def pipe(out: Path) -> None:
    (out / "program.safetensors").unlink()
    os.mkfifo(out / "program.safetensors")


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "huge-graph": (lambda out: put_graph_bundle(out, huge_graph()), "asked for more than"),
    "wrong-graph": (lambda out: put_graph_bundle(out, wrong_graph()), "golden image 0"),
    "cut-graph": (lambda out: put_graph_bundle(out, wrong_graph()[:100]), "graph.onnx: "),
    "no-graph": (lambda out: put_graph_bundle(out, bytes(range(256))), "graph.onnx: "),
    "sparse-graph": (sparse, "asked for more than"),
    "arena": (
        lambda out: put_program_bundle(out, program(8, *pyramid(4096, 2), *pyramid(4096, 8194)), 8),
        r"asked for more than|limit|at most 65536",
    ),
    "merge-after-pyramid": (
        lambda out: put_program_bundle(out, program(8, *pyramid(100, 2), Merge(64, WIDTH, 0, 1), heads=64), 8),
        "",
    ),
    "keys-are-nan": (
        lambda out: put_program_bundle(out, program(40, Merge(1, WIDTH, 0, 19), keys=3e38), 40),
        "",
    ),
    "no-program": (lambda out: put_program_bundle(out, None, 8, b"x" * 99), "program.safetensors: "),
    "cut-program": (cut("program.safetensors"), "program.safetensors: "),
    "cut-activations": (cut("activations.safetensors"), "activations.safetensors: "),
    "cut-labels": (cut("labels.json"), "labels.json: "),
    "cut-config": (of_demo(lambda out: os.truncate(out / "config.json", 900)), "config.json: "),
    "deep-config": (of_demo(lambda out: (out / "config.json").write_text("[" * 99_999)), "config.json: "),
    "another-hash": (of_demo(lambda out: os.truncate(out / "program.safetensors", 4000)), "program.safetensors: "),
    "fewer-labels": (of_demo(lambda out: rehashed(out, "labels.json", b"[]")), "labels"),
    "no-weights": (of_demo(lambda out: (out / "model.safetensors").unlink()), "model.safetensors: no such file"),
    "pipe": (of_demo(pipe), "program.safetensors: no such file"),
}
"""Each hostile bundle by its name: the function that writes it, and a pattern of the line that refuses it."""
