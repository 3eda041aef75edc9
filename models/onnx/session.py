"""Runs an exported graph on the CPU: what all runtimes share, and ONNX Runtime; no other file imports onnxruntime."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from ...kernels.installation import install_command
from ..bundle.graph import BATCH, INPUT
from ..errors import ExportError, first_line
from .telemetry import without_telemetry

if TYPE_CHECKING:
    from torch import Tensor

_ERRORS_ONLY = 3


class GraphSession(ABC):
    """Float32 images (B, 3, H, W) on the CPU -> logits (B, num_classes). Several threads may call it at a time.

    Of a graph `with_embedding` the embedding stands before the logits: (B, width + num_classes).

    Arrays give arrays and need no torch; a tensor gives a tensor, for what compares models.

    It releases Python's lock while it computes. The file is read in the constructor and not needed afterwards.
    """

    runtime: str
    """The name of the library that computes."""

    computes_elsewhere = False
    """Whether threads of the runtime compute while the one that calls waits."""

    @overload
    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]: ...
    @overload
    def __call__(self, images: "Tensor") -> "Tensor": ...
    def __call__(self, images: "NDArray[np.float32] | Tensor") -> "NDArray[np.float32] | Tensor":
        try:
            logits, *embedding = self._compute(np.ascontiguousarray(images))
            rows: NDArray[np.float32] = np.concatenate([*embedding, logits], 1) if embedding else logits
        except Exception as error:  # each runtime has classes of its own, and no common one
            raise ExportError(f"{self.runtime} cannot compute the model: {first_line(error)}") from error
        if isinstance(images, np.ndarray):
            return rows
        import torch

        return torch.from_numpy(rows)

    @abstractmethod
    def _compute(self, images: Any) -> Sequence[Any]:
        """The graph's outputs, in order."""


class OnnxSession(GraphSession):
    """A graph in ONNX Runtime.

    Args:
        graph: a file that `write_onnx` wrote, or its bytes.
        threads: threads that a call may use: its own, and others that all calls share.
        batch: number of images of every call, where it is always the same; shapes are then computed once.

    Raises:
        ExportError: ONNX Runtime cannot run the file.
        ImportError: onnxruntime is missing.
    """

    runtime = "ONNX Runtime"

    def __init__(self, graph: Path | bytes, *, threads: int = 1, batch: int | None = None) -> None:
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
            source = graph if isinstance(graph, bytes) else str(graph)
            self._session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class for each error code, and no common one
            raise ExportError(f"ONNX Runtime cannot load the model: {first_line(error)}") from error

    def _compute(self, images: Any) -> Sequence[Any]:
        outputs: Sequence[Any] = self._session.run(None, {INPUT: images})
        return outputs


def runtime_version(package: str = "onnxruntime") -> str | None:
    """Version of a runtime; None where it is not installed. Nothing is imported."""
    if find_spec(package) is None:
        return None
    try:
        return version(package)
    except PackageNotFoundError:  # ONNX Runtime has several package names
        return "unknown"


def _onnxruntime() -> ModuleType:
    without_telemetry()
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(f"ONNX Runtime is missing: {install_command('onnxruntime')} ({error})") from error
    return onnxruntime
