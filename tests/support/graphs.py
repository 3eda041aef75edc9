"""Bundles that hold a graph of their own, quantised without NNCF, in a second."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from milkweed.models.architectures.registry import create_model
from milkweed.models.bundle.bundle import load_bundle, save_bundle
from milkweed.models.bundle.golden import golden_images, recorded
from milkweed.models.bundle.graph import OnnxGraph
from milkweed.models.bundle.graph_record import GraphRecord
from milkweed.models.bundle.onnx_header import read_header
from milkweed.models.bundle.reading import read_config
from milkweed.models.onnx.export import write_verified
from milkweed.models.onnx.file import INPUT
from milkweed.models.onnx.session import OnnxSession
from milkweed.models.onnx.telemetry import without_telemetry

from .once import once

PROGRAM_SIZE = 40
PROGRAM_ARGUMENTS = {
    "num_classes": 7,
    "embed_dim": 64,
    "depth": 2,
    "num_heads": 4,
    "img_size": PROGRAM_SIZE,
    "patch_size": 8,
}
PROGRAM_VITAE_ARGUMENTS = {
    "num_classes": 7,
    "img_size": PROGRAM_SIZE,
    "embed_dims": [16, 16, 32],
    "token_dims": [32, 16, 64],
    "downsample": [4, 2, 2],
    "depths": [0, 0, 2],
    "num_heads": [1, 1, 4],
    "mlp_ratio": 2,
    "groups": [1, 1, 16],
}


def program_vit() -> nn.Module:
    """A vision transformer that our CPU kernels compute, of weights whose answers differ from image to image."""
    torch.manual_seed(0)
    model = create_model("deit_tiny_patch16_224", **PROGRAM_ARGUMENTS).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            parameter.mul_(20 if name == "head.weight" else 5)
    return model


def program_vitae() -> nn.Module:
    """A ViTAE of the same kind: a pyramid, performers, branches in many groups and in one."""
    torch.manual_seed(0)
    model = create_model("vitae_basic", **PROGRAM_VITAE_ARGUMENTS).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and not name.endswith(".w"):
            parameter.mul_(20 if name == "head.weight" else 5)
    return model


class _Noise:
    """What a graph is quantised by, as ONNX Runtime asks for it."""

    def __init__(self, size: int) -> None:
        images = torch.randn(16, 3, size, size, generator=torch.Generator().manual_seed(1))
        self._left: Iterator[dict[str, np.ndarray]] = ({INPUT: image[None].numpy()} for image in images)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def int8_graph(bundle: Path, folder: Path, backends: tuple[str, ...] = ("onnxruntime", "openvino")) -> OnnxGraph:
    """The quantised graph of a bundle's model; its files are left in `folder`.

    Products of MLPs alone, in weights of 7 bits: every CPU adds those up to the same numbers, and noise says little
    about what attention gives.
    """
    without_telemetry()
    import onnx  # here, since this file is loaded for all tests
    from onnxruntime import quantization

    model, config = load_bundle(bundle)
    size = int(config.preprocess["size"])
    write_verified(model, folder / "float.onnx", size)
    kinds = quantization.QuantType
    types: dict[str, Any] = {"weight_type": kinds.QInt8, "activation_type": kinds.QUInt8}
    files = folder / "float.onnx", folder / "int8.onnx"
    names = [node.name for node in onnx.load(files[0]).graph.node]
    types |= {"quant_format": quantization.QuantFormat.QDQ, "reduce_range": True, "op_types_to_quantize": ["MatMul"]}
    types |= {"nodes_to_quantize": [each for each in names if "mlp." in each]}
    quantization.quantize_static(*files, _Noise(size), **types)
    return recorded_graph((folder / "int8.onnx").read_bytes(), size, backends)


def recorded_graph(data: bytes, size: int, backends: tuple[str, ...] = ("onnxruntime", "openvino")) -> OnnxGraph:
    """A graph and the record of it, with what ONNX Runtime answers."""
    golden = recorded(OnnxSession(data)(golden_images(size)))
    opset = max(read_header(data).opsets.values())
    return OnnxGraph(data, GraphRecord(precision="int8", opset=opset, backends=backends, golden=golden))


def put_graph(source: Path, out: Path, graph: OnnxGraph, *, weights: bool) -> Path:
    """Write the bundle `source` with a graph, beside its weights or alone."""
    model, config = load_bundle(source)
    save_bundle(out, model if weights else None, config, graph=graph)
    return out


@pytest.fixture(scope="session")
def colour_graph(colour_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> OnnxGraph:
    """An int8 graph of the model of `colour_bundle`."""
    folder = once(tmp_path_factory, "int8", lambda made: int8_graph(colour_bundle, made))
    return recorded_graph((folder / "int8.onnx").read_bytes(), int(read_config(colour_bundle).preprocess["size"]))


@pytest.fixture(scope="session")
def graph_alone(colour_bundle: Path, colour_graph: OnnxGraph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `colour_bundle` as an int8 graph, without weights; not to be changed."""
    return put_graph(colour_bundle, tmp_path_factory.mktemp("bundles") / "alone", colour_graph, weights=False)


@pytest.fixture(scope="session")
def graph_and_weights(colour_bundle: Path, colour_graph: OnnxGraph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `colour_bundle` as an int8 graph beside its weights; not to be changed."""
    return put_graph(colour_bundle, tmp_path_factory.mktemp("bundles") / "both", colour_graph, weights=True)
