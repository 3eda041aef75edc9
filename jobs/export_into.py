"""Adds to a bundle what a server without torch computes: its weights as a graph, or our CPU kernels' program."""

import tempfile
import time
from pathlib import Path
from typing import Any

from ..models import BundleConfig, load_bundle, save_bundle
from ..models.bundle.bundle import EXTRAS
from ..models.bundle.graph import OnnxGraph
from ..models.bundle.graph_record import GRAPH, GraphRecord
from ..models.bundle.program_record import OPERATORS, read_activations
from ..models.bundle.provenance import made_from
from ..models.errors import ExportError
from ..models.onnx.export import write_verified
from ..models.onnx.recorded import graph_record
from ..models.programs.stored import StoredProgram


def export_into(bundle: Path, *, overwrite: bool = False) -> BundleConfig:
    """Write the bundle again, with a graph in float32 or, where it was made for our CPU kernels, with its program.

    The graph is compared with torch's answers before it is in place.

    Args:
        overwrite: replace a graph or program that is there already.

    Raises:
        BundleError: the bundle cannot be read or written.
        ExportError: the model cannot be exported, or the bundle has a graph or program already.
        ImportError: onnx, onnxscript or onnxruntime are missing.
    """
    started = time.perf_counter()
    model, config = load_bundle(bundle)
    name = GRAPH if config.program is None else OPERATORS
    if name in config.files and not overwrite:
        raise ExportError(f"bundle {bundle}: holds {name} already; --force replaces it")
    contents: dict[str, Any]
    if config.program is None:
        contents = {"model": model, "storage": config.storage, "graph": _graph(bundle, config)}
    else:
        activations = None if config.program.precision == "bfloat16" else read_activations(bundle)
        contents = StoredProgram(model, config.storage, activations).contents(int(config.preprocess["size"]))
    extras = {extra: (bundle / extra).read_bytes() for extra in EXTRAS if (bundle / extra).is_file()}
    return save_bundle(
        bundle,
        config=made_from(
            config, "export", {"into": str(bundle)}, time.perf_counter() - started, metrics=config.metrics
        ),
        overwrite=True,
        extras=extras,
        **contents,
    )


def _graph(bundle: Path, config: BundleConfig) -> OnnxGraph:
    model, _ = load_bundle(bundle)  # another one: it is used up
    with tempfile.TemporaryDirectory(prefix="milkweed-") as folder:
        file = Path(folder) / GRAPH
        try:
            write_verified(model, file, int(config.preprocess["size"]))
        except ExportError as error:
            raise ExportError(f"bundle {bundle}: cannot be exported as ONNX: {error}") from error
        return OnnxGraph(file.read_bytes(), GraphRecord(precision="float32", **graph_record(file, "float32")))
