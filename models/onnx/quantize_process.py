"""`python -m milkweed.models.onnx.quantize_process GRAPH IMAGES OUT SETTINGS`: quantises a graph in its own process.

NNCF imports a gigabyte, prints progress, replaces loggers and would tell its makers that it runs: none of it must
happen to the program that asks. It would import the whole of PyTorch as well, which a graph does not need: three
seconds, so it is told that there is none. No other file imports nncf.
"""

import contextlib
import json
import logging
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy

from ..bundle.graph import INPUT
from ..errors import ExportError, first_line
from .recorded import graph_record
from .telemetry import without_telemetry

BATCH_SIZE = 8
"""Images of one batch. A layer's range is the mean of the batches' ranges; single images give narrower ones, which
clip more: KL .0042 to .0047, where batches of eight have .0039 to .0043, in less time (DeiT-Tiny, fitted to 32 to 250
photographs, evaluated on 250 others)."""

OFF = -1
"""NNCF's alpha of a SmoothQuant that is switched off."""


def main(arguments: Sequence[str]) -> int:
    """Quantise; print the record of the graph as one JSON object, or what went wrong as a line on stderr.

    Args:
        arguments: the graph, its images as .npy (n, 3, H, W), the file to write, and the settings as JSON.
    """
    source, images, out = map(Path, arguments[:3])
    settings = json.loads(arguments[3])
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            quantise(source, images, out, **settings)
            record = _record(out)
    except (ValueError, OSError, ImportError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    print(json.dumps(record))
    return 0


def quantise(
    source: Path, images: Path, out: Path, *, smooth_quant: float | None, keep_float: Sequence[str], symmetric: bool
) -> None:
    """Write the W8A8 form of a graph: QuantizeLinear and DequantizeLinear around what runtimes compute in int8.

    Raises:
        ExportError: NNCF cannot quantise the graph, or the graph is quantised already.
        ValueError: a pattern of `keep_float` names no layer.
    """
    import onnx

    model = onnx.load_model(str(source))
    if any(node.op_type == "QuantizeLinear" for node in model.graph.node):
        raise ExportError("the graph is quantised already")
    kept = kept_nodes(model, keep_float)
    pixels = numpy.load(images, mmap_mode="r")
    batches = [pixels[start : start + BATCH_SIZE] for start in range(0, len(pixels), BATCH_SIZE)]
    try:
        quantised = _nncf_form(model, batches, smooth_quant, kept, symmetric)
        _strip(quantised)
        onnx.save_model(quantised, str(out))
        onnx.checker.check_model(str(out), full_check=True)
    except Exception as error:  # NNCF, ONNX Runtime and onnx have classes of their own, and no common one
        raise ExportError(f"NNCF cannot quantise the graph: {type(error).__name__}: {first_line(error)}") from error


def _nncf_form(
    model: Any, batches: Sequence[Any], smooth_quant: float | None, kept: Sequence[str], symmetric: bool
) -> Any:
    without_telemetry()
    import nncf
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, AdvancedSmoothQuantParameters

    nncf.set_log_level(logging.WARNING)
    alpha = OFF if smooth_quant is None else smooth_quant
    alphas = AdvancedSmoothQuantParameters(matmul=alpha, convolution=OFF)
    return nncf.quantize(
        model,
        nncf.Dataset(batches, lambda batch: {INPUT: numpy.ascontiguousarray(batch)}),
        subset_size=len(batches),
        model_type=nncf.ModelType.TRANSFORMER,
        preset=nncf.QuantizationPreset.PERFORMANCE if symmetric else nncf.QuantizationPreset.MIXED,
        ignored_scope=nncf.IgnoredScope(names=list(kept)),
        advanced_parameters=AdvancedQuantizationParameters(smooth_quant_alphas=alphas),
    )


def kept_nodes(model: Any, patterns: Sequence[str]) -> list[str]:
    """The names of the nodes of the layers that match one of the patterns, or lie inside a module that does.

    Raises:
        ValueError: a pattern matches none.
    """
    nodes: dict[str, None] = {}
    for pattern in patterns:
        names = [node.name for node in model.graph.node if _inside(node.name.rpartition("/")[0], pattern)]
        if not names:
            raise ValueError(f"layers to keep in float: {pattern!r} is no layer of the graph")
        nodes.update(dict.fromkeys(names))
    return list(nodes)


def _inside(layer: str, pattern: str) -> bool:
    return bool(layer) and (fnmatchcase(layer, pattern) or fnmatchcase(layer, f"{pattern}.*"))


def _strip(model: Any) -> None:
    """Remove what a bundle says itself, and the shapes in between, which every runtime works out."""
    del model.graph.value_info[:]
    del model.metadata_props[:]
    model.producer_name, model.producer_version = "milkweed", version("milkweed")


def _record(file: Path) -> dict[str, Any]:
    """What a bundle says of the graph: its opset, its golden answers, the backends that give them, and versions."""
    record = graph_record(file, "int8")
    return {**record, "versions": {name: version(name) for name in ("nncf", *record["backends"])}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
