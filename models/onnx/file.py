"""Writes a module as an ONNX file, checks it and describes it; no other file imports onnx and PyTorch's exporter."""

import ast
import contextlib
import io
import math
import warnings
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ...kernels.installation import install_command
from ..bundle.graph import BATCH as BATCH
from ..bundle.graph import INPUT as INPUT
from ..bundle.graph import OUTPUT as OUTPUT
from ..errors import ExportError, first_line

OPSET = 20
"""The first opset that has GELU as one operation."""

INLINE_BYTES = 2**31 - 2**24
"""More bytes of weights than this lie in a file of their own: protobuf writes no message of 2 GiB."""

_SCOPES = "pkg.torch.onnx.name_scopes"
"""The exporter's name of a node's metadata that hold its layer, and those around it, as a list in Python's syntax."""

_MOVES = {"Cast", "Concat", "Expand", "Gather", "Reshape", "Shape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
"""Operators that compute nothing; a name of the layer would only make the file larger."""


def write_onnx(model: nn.Module, path: Path, images: Tensor, *, bfloat16_weights: bool = False) -> None:
    """Write a module as an ONNX file for batches of any size.

    Where the weights are too large for one file, they lie beside it in `<its name>.data`.

    Args:
        model: in evaluation mode, without gradients; float32 images (B, 3, H, W) -> float32 logits.
        images: two or more images to record the model with, of the size that it will take.
        bfloat16_weights: store weights in bfloat16 where that is exact; the computation stays float32.

    Raises:
        ExportError: the model cannot be recorded, not for every batch size, or not in ONNX's operations.
        ImportError: onnx or onnxscript are missing.
    """
    onnx = _onnx()
    proto = _recorded(model, images)
    dimension = proto.graph.input[0].type.tensor_type.shape.dim[0]
    if dimension.dim_param != BATCH:
        raise ExportError(f"the model computes batches of {dimension.dim_value} images only")
    _name_by_layer(proto)
    if bfloat16_weights:
        _narrow(proto)
    _clean(proto)
    size = sum(len(tensor.raw_data) for tensor in proto.graph.initializer)
    onnx.save_model(proto, str(path), save_as_external_data=size > INLINE_BYTES, location=data_file(path).name)
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"onnx.checker refuses the model: {first_line(error)}") from error


def data_file(path: Path) -> Path:
    """The file for the weights of a large model."""
    return path.with_name(path.name + ".data")


def contents(path: Path) -> tuple[dict[str, int], int]:
    """The number of uses of each operator, most used first, and the bytes of all weights."""
    onnx = _onnx()
    graph = onnx.load_model(str(path), load_external_data=False).graph
    weights = sum(
        math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        for tensor in graph.initializer
    )
    return dict(Counter(node.op_type for node in graph.node).most_common()), weights


def describe(path: Path, metadata: Mapping[str, str]) -> None:
    """Add `metadata_props` to a file."""
    onnx = _onnx()
    proto = onnx.load_model(str(path), load_external_data=False)
    onnx.helper.set_model_props(proto, dict(metadata))
    onnx.save_model(proto, str(path))


def _recorded(model: nn.Module, images: Tensor) -> Any:
    """Record the model as a ModelProto."""
    batch = torch.export.Dim(BATCH, min=1)
    said = io.StringIO()  # on failure the exporter prints everything recorded
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            warnings.simplefilter("ignore")  # the warnings are about the exporter's internals
            recorded = _attention_of_four_axes(torch.export.export(model, (images,), dynamic_shapes=({0: batch},)))
            program = torch.onnx.export(
                recorded,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: BATCH},),
                dynamo=True,
                optimize=False,
                verbose=False,
            )
            assert program is not None
            _simplify(program.model)
            return program.model_proto
    except Exception as raised:  # anything that cannot be recorded or that ONNX has no operation for
        error: BaseException = raised
        while error.__cause__ is not None:  # the outer messages are advice to the exporter's developers
            error = error.__cause__
        raise ExportError(f"{type(error).__name__}: {first_line(error)}") from raised


def _attention_of_four_axes(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Give attention of three or five axes four axes, the only ones the exporter takes, by merging the leading ones."""
    attention = torch.ops.aten.scaled_dot_product_attention.default

    def four(x: Tensor) -> Tensor:
        return x.flatten(0, -3).unsqueeze(1)

    def of_four_axes(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, *others: Any, **options: Any
    ) -> Any:
        if q.dim() == 4:
            return NotImplemented  # it stays as it is
        mask = None if attn_mask is None else four(attn_mask.expand(*q.shape[:-1], k.shape[-2]))
        return attention(four(q), four(k), four(v), mask, *others, **options).view(*q.shape[:-1], v.shape[-1])

    if all(node.args[0].meta["val"].dim() == 4 for node in program.graph.nodes if node.target is attention):
        return program
    return program.run_decompositions({attention: of_four_axes})


def _simplify(model: Any) -> None:
    """Fold constants and share equal values, in place.

    The exporter's own optimisation does more, but treats tiny numbers as zero: it drops + 1e-8.
    """
    import onnx_ir.passes.common as passes
    from onnxscript import optimizer, rewriter
    from onnxscript.rewriter.rules.common import materialize_reshape_shape_rule

    for _ in range(2):  # the first pass makes more values constant
        optimizer.fold_constants(model, onnx_shape_inference=True)
        rewriter.rewrite(model, [materialize_reshape_shape_rule])
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.DeduplicateInitializersPass()(model)
    passes.CommonSubexpressionEliminationPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)


def _narrow(proto: Any) -> None:
    """Store weights in bfloat16, each with a Cast behind it, where that is exact."""
    onnx = _onnx()
    casts = []
    for tensor in proto.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) < 2:
            continue
        values = torch.frombuffer(bytearray(tensor.raw_data), dtype=torch.float32)
        narrow = values.bfloat16()
        if not torch.equal(narrow.float(), values):
            continue
        name = tensor.name
        tensor.name, tensor.data_type = f"{name}.bfloat16", onnx.TensorProto.BFLOAT16
        tensor.raw_data = narrow.view(torch.int16).numpy().tobytes()
        casts.append(onnx.helper.make_node("Cast", [tensor.name], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def _name_by_layer(proto: Any) -> None:
    """Name each node that computes `<layer>/<its place in the file>`, so that the model's layers are found in it."""
    for place, node in enumerate(proto.graph.node):
        scopes = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), "[]")
        *outer, _ = ast.literal_eval(scopes) or [""]  # the last one is the operation's
        layer = outer[-1].removeprefix("model").lstrip(".") if outer else ""  # of `Exported`, which has it as `model`
        node.name = f"{'' if node.op_type in _MOVES else layer}/{place}"


def _clean(proto: Any) -> None:
    """Remove what the exporter writes about this machine: every node holds a stack trace with paths."""
    graph = proto.graph
    for part in (proto, graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    proto.producer_name, proto.producer_version = "milkweed", version("milkweed")


def _onnx() -> ModuleType:
    try:
        import onnx
        import onnxscript  # noqa: F401  (the exporter's)
    except ImportError as error:
        raise ImportError(
            f"ONNX export needs onnx, onnxscript and onnxruntime: {install_command('onnx')} ({error})"
        ) from error
    return onnx
