"""Makes the record of a graph in a bundle: its answers to the golden images, and the backends that give them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bundle.golden import check_golden, golden_images, recorded, softmax
from ..bundle.onnx_header import read_header
from ..errors import BundleError, ExportError
from .openvino_session import OpenVinoSession
from .session import OnnxSession

SESSIONS = {"onnxruntime": OnnxSession, "openvino": OpenVinoSession}


def graph_record(file: Path, precision: str) -> dict[str, Any]:
    """Compute the opset, the golden answers and the backends of a graph's record.

    Args:
        file: an ONNX file with one input of images.
        precision: int8 for a quantised graph, else float32: the tolerance within which backends have to agree.

    Raises:
        ExportError: no installed backend computes the graph, with the reason of the last one.
    """
    header = read_header(file.read_bytes())
    images = golden_images(header.inputs[0].shape[2] or 0)
    computed, failed = dict[str, NDArray[np.float32]](), ExportError("no backend computes the graph")
    # ONNX Runtime computes no product of matrices in batches whose weights have a scale a channel: Monarch layers do.
    for name, session in SESSIONS.items():
        try:
            computed[name] = session(file)(images)
        except (ExportError, ImportError) as error:
            failed = error if isinstance(error, ExportError) else failed
    if not computed:
        raise failed
    golden = recorded(next(iter(computed.values())))
    backends = [name for name, logits in computed.items() if _agrees(golden, logits, precision)]
    return {"opset": max(header.opsets.values()), "backends": backends, "golden": golden}


def _agrees(golden: Mapping[str, Any], logits: NDArray[np.float32], precision: str) -> bool:
    try:
        check_golden(golden, softmax(logits), precision)
    except BundleError:
        return False
    return True
