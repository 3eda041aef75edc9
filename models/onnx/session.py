"""Runs an exported model in ONNX Runtime on the CPU; no other file imports onnxruntime."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from ..errors import ExportError, first_line
from .file import BATCH, INPUT
from .telemetry import without_telemetry

_ERRORS_ONLY = 3


class OnnxSession(nn.Module):
    """Float32 images (B, 3, H, W) on the CPU -> logits (B, num_classes). Several threads may call it at a time.

    It releases Python's lock while it computes. The file is read in the constructor and not needed afterwards.

    Args:
        path: a file that `write_onnx` wrote.
        threads: threads that a call may use: its own, and others that all calls share.
        batch: number of images of every call, where it is always the same; shapes are then computed once.

    Raises:
        ExportError: ONNX Runtime cannot run the file.
        ImportError: onnxruntime is missing.
    """

    def __init__(self, path: Path, *, threads: int = 1, batch: int | None = None) -> None:
        super().__init__()
        runtime = _onnxruntime()
        options = runtime.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that spin while they wait would take the cores from decoders and the event loop.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if batch is not None:
            options.add_free_dimension_override_by_name(BATCH, batch)
        try:
            self._session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class for each error code, and no common one
            raise ExportError(f"ONNX Runtime cannot load the model: {first_line(error)}") from error

    def forward(self, images: Tensor) -> Tensor:
        try:
            [logits] = self._session.run(None, {INPUT: images.contiguous().numpy()})
        except Exception as error:  # as above
            raise ExportError(f"ONNX Runtime cannot compute the model: {first_line(error)}") from error
        return torch.from_numpy(logits)


def runtime_version() -> str | None:
    """Version of ONNX Runtime; None where it is not installed. Nothing is imported."""
    if find_spec("onnxruntime") is None:
        return None
    try:
        return version("onnxruntime")
    except PackageNotFoundError:  # it has several package names
        return "unknown"


def _onnxruntime() -> ModuleType:
    without_telemetry()
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(f"ONNX Runtime is missing: pip install 'milkweed[onnx]' ({error})") from error
    return onnxruntime
