"""Makes models in whose logits every mistake shows, and compares exported files with them."""

from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from milkweed.models import create_model
from milkweed.models.bundle.graph import OnnxGraph
from milkweed.models.layers.select import layer_specs_for, replace_linears, select_linears
from milkweed.models.onnx.session import OnnxSession

from ..tiny import weighted

SIZE = 32


def made(arch: str, arguments: dict[str, Any], *, monarch: bool = False) -> nn.Module:
    """A model of seven classes, all its linear layers but the head Monarch where that is wanted."""
    torch.manual_seed(0)
    model = create_model(arch, num_classes=7, **arguments)
    if monarch:
        replace_linears(model, layer_specs_for(model, select_linears(model, ["[!h]*"]), "monarch", nblocks=4))
    return weighted(model).requires_grad_(False)


def noise(count: int = 8) -> Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(3))


def differences(model: nn.Module, file: Path, images: Tensor) -> list[float]:
    """Compare the logits in batches of 1, 3 and 8, of a model that tells the images apart."""
    session = OnnxSession(file)
    with torch.inference_mode():
        assert float(model(images).std(0).max()) > 0.01
        return [float((session(images[:n]) - model(images[:n])).abs().max()) for n in (1, 3, 8)]


def proto_of(graph: OnnxGraph) -> Any:
    return onnx.load_from_string(graph.data)


def float_inputs(graph: OnnxGraph) -> dict[str, bool]:
    """For each product, whether its weight is read as it is, without DequantizeLinear."""
    made_by = {name: node.op_type for node in proto_of(graph).graph.node for name in node.output}
    products = [node for node in proto_of(graph).graph.node if node.op_type == "MatMul"]
    return {node.name: made_by.get(node.input[1]) != "DequantizeLinear" for node in products}
